# Open files of one client exclude each other; what is loose becomes the first one's hold.
t=0s host open unending
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s ann acquire x
  -> granted token 2 until t=31s
  * x: granted to ann, token 2, exclusive
  = x: held, exclusive; ann token 2 until t=31s
t=2s ann acquire x file=1.1
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 for good, file 1.1
t=3s ann acquire x file=1.2
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by your own user, ann, until it lets go (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire x --reentrant'
  = x: held, exclusive; ann token 2 for good, file 1.1
t=3s bob acquire x file=1.3 wait
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)

# touch renews, whoever holds it within the client; a ttl does not cut an open file's hold short.
t=4s ann acquire x
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
t=5s ann renew x ttl=1s firm
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
t=60s ann renew x
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)

# Its mode is the open file's own affair.
t=61s ann acquire x shared
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by your own user, ann, until it lets go (1 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire x --reentrant'
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
t=62s ann acquire x shared file=1.1
  -> renewed token 2 with session 1
  * x: renewed by ann, token 2
  = x: held, shared; ann token 2 for good, file 1.1; waiting: bob (exclusive)
t=63s ann release x token=2
  -> released
  * x: token 2 of ann released after 1m2s
  * x: granted to bob, token 3, exclusive, ticket 1 after 1m
  = x: held, exclusive; bob token 3 for good, file 1.3

# Exclusive forms exclude the client itself; only the open file that made the lock takes it over.
t=64s ann acquire y firm=1.4
  -> granted token 4 until t=94s
  * y: granted to ann, token 4, exclusive
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 until t=94s, firm by 1.4
t=65s ann acquire y firm
  -> refused, E_LOCK_CONFLICT: lock 'y' is held by your own user, ann, for 29s more (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire y --reentrant'
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 until t=94s, firm by 1.4
t=66s ann acquire y file=1.5
  -> refused, E_LOCK_CONFLICT: lock 'y' is held by your own user, ann, for 28s more (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire y --reentrant'
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 until t=94s, firm by 1.4
t=67s ann acquire y file=1.4
  -> renewed token 4 with session 1
  * y: renewed by ann, token 4
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 for good, file 1.4

# What was given a ttl is firm, and no open file's to take.
t=68s ann acquire z
  -> granted token 5 until t=98s
  * z: granted to ann, token 5, exclusive
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 for good, file 1.4
  = z: held, exclusive; ann token 5 until t=98s
t=69s ann renew z ttl=60s firm
  -> renewed token 5 until t=129s
  * z: renewed by ann, token 5
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 for good, file 1.4
  = z: held, exclusive; ann token 5 until t=129s, firm
t=70s ann acquire z file=1.6
  -> refused, E_LOCK_CONFLICT: lock 'z' is held by your own user, ann, for 59s more (0 waiting), for another program or open file; wait with 'latchfs run' or 'latchfs wait'; or if the lease is yours, renew it with 'latchfs acquire z --reentrant'
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 for good, file 1.4
  = z: held, exclusive; ann token 5 until t=129s, firm
t=71s ann acquire z
  -> renewed token 5 until t=101s
  * z: renewed by ann, token 5
  = x: held, exclusive; bob token 3 for good, file 1.3
  = y: held, exclusive; ann token 4 for good, file 1.4
  = z: held, exclusive; ann token 5 until t=101s, firm
