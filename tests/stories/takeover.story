# The open file through which a text was written takes that lease over, before all waiters.
t=0s host open unending
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s ann acquire x firm text=mine
  -> granted token 2 until t=31s
  * x: granted to ann, token 2, exclusive
  = x: held, exclusive; ann token 2 until t=31s, firm
t=2s bob acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 2 until t=31s, firm; waiting: bob (exclusive)
t=2s ann acquire x file=1.1 wait=5s over=1
  -> waiting with ticket 2, 1 before it
  * x: ann waits, ticket 2
  = x: held, exclusive; ann token 2 until t=31s, firm; waiting: bob (exclusive), ann (exclusive)

# Without the token, and with another one, the request is like any other.
t=3s ann acquire x file=1.1
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by your own user, ann, for 28s more (2 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire x --reentrant'
  = x: held, exclusive; ann token 2 until t=31s, firm; waiting: bob (exclusive), ann (exclusive)
t=3s bob acquire x file=1.1 over=2
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by ann for 28s more (2 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; ann token 2 until t=31s, firm; waiting: bob (exclusive), ann (exclusive)
t=4s ann acquire x file=1.1 wait over=2
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive), ann (exclusive)
t=5s ann acquire x file=1.2 over=2
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by your own user, ann, until it lets go (2 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire x --reentrant'
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive), ann (exclusive)
t=60s ann release x token=2 file=1.1
  -> released
  * x: ann left, ticket 2, out of patience
  * x: token 2 of ann released after 59s
  * x: granted to bob, token 3, exclusive, ticket 1 after 58s
  = x: held, exclusive; bob token 3 until t=90s

# The mode may change with it. A shared lock that others share stays shared.
t=61s ann acquire y firm
  -> granted token 4 until t=91s
  * y: granted to ann, token 4, exclusive
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, exclusive; ann token 4 until t=91s, firm
t=61s cy acquire y shared wait
  -> waiting with ticket 3, 0 before it
  * y: cy waits, ticket 3
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, exclusive; ann token 4 until t=91s, firm; waiting: cy (shared)
t=62s ann acquire y shared file=1.3 over=4
  -> renewed token 4 with session 1
  * y: renewed by ann, token 4
  * y: granted to cy, token 5, shared, ticket 3 after 1s
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=92s
t=63s cy acquire y shared
  -> renewed token 5 until t=93s
  * y: renewed by cy, token 5
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
t=64s ann acquire z firm
  -> granted token 6 until t=94s
  * z: granted to ann, token 6, exclusive
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 6 until t=94s, firm
t=64s ann acquire z shared
  -> renewed token 6 until t=94s
  * z: renewed by ann, token 6
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, shared; ann token 6 until t=94s, firm
t=64s cy acquire z shared
  -> granted token 7 until t=94s
  * z: granted to cy, token 7, shared
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, shared; ann token 6 until t=94s, firm; cy token 7 until t=94s
t=65s ann acquire z file=1.4 wait over=6
  -> refused, E_LOCK_CONFLICT: lock 'z' is held by cy for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, shared; ann token 6 until t=94s, firm; cy token 7 until t=94s
t=66s cy release z
  -> released
  * z: token 7 of cy released after 2s
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, shared; ann token 6 until t=94s, firm
t=67s ann acquire z file=1.4 wait over=6
  -> renewed token 8 with session 1
  * z: token 6 of ann replaced after 3s
  * z: granted to ann, token 8, exclusive
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4

# A lease that another file has made or locked is not taken over by its token.
t=68s ann acquire v firm=1.5
  -> granted token 9 until t=98s
  * v: granted to ann, token 9, exclusive
  = v: held, exclusive; ann token 9 until t=98s, firm by 1.5
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4
t=68s ann acquire v file=1.6 over=9
  -> refused, E_LOCK_CONFLICT: lock 'v' is held by your own user, ann, for 30s more (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire v --reentrant'
  = v: held, exclusive; ann token 9 until t=98s, firm by 1.5
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4
t=69s ann acquire v file=1.5 over=9
  -> renewed token 9 with session 1
  * v: renewed by ann, token 9
  = v: held, exclusive; ann token 9 for good, file 1.5
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4
t=69s ann acquire v file=1.6 over=9
  -> refused, E_LOCK_CONFLICT: lock 'v' is held by your own user, ann, until it lets go (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire v --reentrant'
  = v: held, exclusive; ann token 9 for good, file 1.5
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4
t=70s ann acquire v file=1.6 over=99 wait
  -> waiting with ticket 4, 0 before it
  * v: ann waits, ticket 4
  = v: held, exclusive; ann token 9 for good, file 1.5; waiting: ann (exclusive)
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; ann token 4 for good, file 1.3; cy token 5 until t=93s
  = z: held, exclusive; ann token 8 for good, file 1.4
t=71s host end session=1
  -> session ended
  * v: ann left, ticket 4, its session being over
  * v: token 9 of ann released after 3s
  * y: token 4 of ann released after 10s
  * z: token 8 of ann released after 4s
  * session 1 of host closed
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; cy token 5 until t=93s

# A token of a lease that is over counts for nothing.
t=72s host open unending
  -> session 10 opened
  * session 10 of host opened
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; cy token 5 until t=93s
t=73s ann acquire x file=10.1 over=2
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by bob for 17s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; bob token 3 until t=90s
  = y: held, shared; cy token 5 until t=93s
