# An administrator's act: a reason, a new token, and nobody has the lock for the steal grace.
t=0s ann acquire x ttl=60s
  -> granted token 1 until t=60s
  * x: granted to ann, token 1, exclusive
  = x: held, exclusive; ann token 1 until t=60s
t=1s bob acquire x wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 1 until t=60s; waiting: bob (exclusive)
t=2s root steal x reason=the-laptop-is-in-the-sea ttl=10s
  -> stolen token 2 until t=13s, begins t=3s
  * x: token 1 of ann stolen by root (the-laptop-is-in-the-sea) after 2s
  * x: granted to root, token 2, exclusive
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=2s root acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 1s more; try again then
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=2.999999999s root renew x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 1ms more; try again then
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=2.999999999s ann acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 1ms more; try again then
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=2.999999999s root move x to=y
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 1ms more; try again then
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=3s root renew x ttl=10s
  -> renewed token 2 until t=13s
  * x: renewed by root, token 2
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=4s ann renew x token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'x' is not the current one (2); stop the work that it guarded: another tenure has begun
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=4s ann release x
  -> refused, E_LOCK_NOT_HELD: lock 'x' is held by root, not by ann; only its holder can renew or release it
  = x: held, exclusive; root token 2 until t=13s, firm; waiting: bob (exclusive)
t=5s root release x
  -> released
  * x: token 2 of root released after 2s
  * x: granted to bob, token 3, exclusive, ticket 1 after 4s
  = x: held, exclusive; bob token 3 until t=15s

# What is free is simply taken; an expired lease past its grace too.
t=6s root steal y reason=why-not ttl=1s grace=1s
  -> stolen token 4 until t=7s, begins t=6s
  * y: granted to root, token 4, exclusive
  = x: held, exclusive; bob token 3 until t=15s
  = y: held, exclusive; root token 4 until t=7s, firm
t=8s root steal y reason=it-lapsed
  -> stolen token 5 until t=38s, begins t=8s
  * y: expired, token 4 of root
  * y: token 4 of root lapsed after 2s
  * y: granted to root, token 5, exclusive
  = x: held, exclusive; bob token 3 until t=15s
  = y: held, exclusive; root token 5 until t=38s, firm
