# Two of four machines have left: whatever they hold and wait for is taken away, in one step. Who
# is promoted is one of those that stay, and has the lock when the old holder has surely stopped.
t=0s ann acquire x ttl=60s
  -> granted token 1 until t=60s
  * x: granted to ann, token 1, exclusive
  = x: held, exclusive; ann token 1 until t=60s
t=0s ann:cron acquire y ttl=60s
  -> granted token 2 until t=60s
  * y: granted to ann:cron, token 2, exclusive
  = x: held, exclusive; ann token 1 until t=60s
  = y: held, exclusive; ann:cron token 2 until t=60s
t=1s bob acquire x wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 1 until t=60s; waiting: bob (exclusive)
  = y: held, exclusive; ann:cron token 2 until t=60s
t=1s cy acquire x wait ttl=10s
  -> waiting with ticket 2, 1 before it
  * x: cy waits, ticket 2
  = x: held, exclusive; ann token 1 until t=60s; waiting: bob (exclusive), cy (exclusive)
  = y: held, exclusive; ann:cron token 2 until t=60s
t=2s dan acquire z ttl=60s
  -> granted token 3 until t=62s
  * z: granted to dan, token 3, exclusive
  = x: held, exclusive; ann token 1 until t=60s; waiting: bob (exclusive), cy (exclusive)
  = y: held, exclusive; ann:cron token 2 until t=60s
  = z: held, exclusive; dan token 3 until t=62s
t=3s root reset keep=cy,dan reason=the-rack-is-dark
  -> reset 2 holds, 1 places
  * x: bob left, ticket 1, being reset
  * x: token 1 of ann stolen by root (the-rack-is-dark) after 3s
  * x: granted to root, token 4, exclusive
  * y: token 2 of ann:cron stolen by root (the-rack-is-dark) after 3s
  * y: granted to root, token 5, exclusive
  = x: held, exclusive; root token 4 until t=4s, firm; waiting: cy (exclusive)
  = y: held, exclusive; root token 5 until t=4s, firm
  = z: held, exclusive; dan token 3 until t=62s
t=3s cy acquire y
  -> refused, E_LOCK_CONFLICT: lock 'y' was taken over by root, and nobody may use it for 1s more; try again then
  = x: held, exclusive; root token 4 until t=4s, firm; waiting: cy (exclusive)
  = y: held, exclusive; root token 5 until t=4s, firm
  = z: held, exclusive; dan token 3 until t=62s
t=3.999999999s dan acquire y
  -> refused, E_LOCK_CONFLICT: lock 'y' was taken over by root, and nobody may use it for 1ms more; try again then
  = x: held, exclusive; root token 4 until t=4s, firm; waiting: cy (exclusive)
  = y: held, exclusive; root token 5 until t=4s, firm
  = z: held, exclusive; dan token 3 until t=62s
t=4s - settle
  -> settled
  * x: token 4 of root released after 0ms
  * x: granted to cy, token 6, exclusive, ticket 2 after 3s
  * y: token 5 of root released after 0ms
  = x: held, exclusive; cy token 6 until t=14s
  = z: held, exclusive; dan token 3 until t=62s
t=4s dan acquire y ttl=5s
  -> granted token 7 until t=9s
  * y: granted to dan, token 7, exclusive
  = x: held, exclusive; cy token 6 until t=14s
  = y: held, exclusive; dan token 7 until t=9s
  = z: held, exclusive; dan token 3 until t=62s
t=4s ann release x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (6); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; cy token 6 until t=14s
  = y: held, exclusive; dan token 7 until t=9s
  = z: held, exclusive; dan token 3 until t=62s
# One client's own, as when it is known to be gone; and then everybody's.
t=5s root reset of=dan reason=gone-too
  -> reset 2 holds, 0 places
  * y: token 7 of dan stolen by root (gone-too) after 1s
  * y: granted to root, token 8, exclusive
  * z: token 3 of dan stolen by root (gone-too) after 3s
  * z: granted to root, token 9, exclusive
  = x: held, exclusive; cy token 6 until t=14s
  = y: held, exclusive; root token 8 until t=6s, firm
  = z: held, exclusive; root token 9 until t=6s, firm
t=6s root reset reason=begin-anew
  -> reset 1 holds, 0 places
  * y: token 8 of root released after 0ms
  * z: token 9 of root released after 0ms
  * x: token 6 of cy stolen by root (begin-anew) after 2s
  * x: granted to root, token 10, exclusive
  = x: held, exclusive; root token 10 until t=7s, firm
t=7s - settle
  -> settled
  * x: token 10 of root released after 0ms
  = all free
# A reset of many locks in parts: the names from one to another, then the rest. Others go on between.
t=10s ann acquire x ttl=60s
  -> granted token 11 until t=70s
  * x: granted to ann, token 11, exclusive
  = x: held, exclusive; ann token 11 until t=70s
t=10s ann acquire y ttl=60s
  -> granted token 12 until t=70s
  * y: granted to ann, token 12, exclusive
  = x: held, exclusive; ann token 11 until t=70s
  = y: held, exclusive; ann token 12 until t=70s
t=10s bob acquire y wait
  -> waiting with ticket 3, 0 before it
  * y: bob waits, ticket 3
  = x: held, exclusive; ann token 11 until t=70s
  = y: held, exclusive; ann token 12 until t=70s; waiting: bob (exclusive)
t=10s root reset of=ann from=a to=x reason=the-first-part
  -> reset 1 holds, 0 places in this part
  * x: token 11 of ann stolen by root (the-first-part) after 0ms
  * x: granted to root, token 13, exclusive
  = x: held, exclusive; root token 13 until t=11s, firm
  = y: held, exclusive; ann token 12 until t=70s; waiting: bob (exclusive)
t=10s cy acquire w ttl=60s
  -> granted token 14 until t=70s
  * w: granted to cy, token 14, exclusive
  = w: held, exclusive; cy token 14 until t=70s
  = x: held, exclusive; root token 13 until t=11s, firm
  = y: held, exclusive; ann token 12 until t=70s; waiting: bob (exclusive)
t=10s root reset of=ann holds=1 reason=the-first-part
  -> reset 2 holds, 0 places
  * y: token 12 of ann stolen by root (the-first-part) after 0ms
  * y: granted to root, token 15, exclusive
  = w: held, exclusive; cy token 14 until t=70s
  = x: held, exclusive; root token 13 until t=11s, firm
  = y: held, exclusive; root token 15 until t=11s, firm; waiting: bob (exclusive)
