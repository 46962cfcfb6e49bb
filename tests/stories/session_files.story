# A session that lasts until it is ended, and open files on it.
t=0s host open unending
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s ann acquire x file=1.1
  -> granted token 2 with session 1
  * x: granted to ann, token 2, exclusive
  = x: held, exclusive; ann token 2 for good, file 1.1
t=2s bob acquire x file=1.2 wait
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
t=3s ann acquire y file=1.3
  -> granted token 3 with session 1
  * y: granted to ann, token 3, exclusive
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
  = y: held, exclusive; ann token 3 for good, file 1.3
t=4s host keep session=1
  -> kept for good
  * session 1 kept alive
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
  = y: held, exclusive; ann token 3 for good, file 1.3
t=500s - settle
  -> settled
  = x: held, exclusive; ann token 2 for good, file 1.1; waiting: bob (exclusive)
  = y: held, exclusive; ann token 3 for good, file 1.3

# Its end without a word puts all in grace from then on; its waiters are gone.
t=501s host end session=1 expired
  -> session ended
  * session 1 of host expired
  * x: bob left, ticket 1, its session being over
  * x: expired, token 2 of ann
  * y: expired, token 3 of ann
  = x: grace, exclusive; ann token 2 in grace until t=506s, file 1.1
  = y: grace, exclusive; ann token 3 in grace until t=506s, file 1.3
t=502s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x': grace period active: only ann may take it back for 4s more; try again then
  = x: grace, exclusive; ann token 2 in grace until t=506s, file 1.1
  = y: grace, exclusive; ann token 3 in grace until t=506s, file 1.3

# Who speaks for the client may take back what a lost open file held.
t=503s ann acquire x ttl=10s
  -> renewed token 2 until t=513s
  * x: renewed by ann, token 2
  = x: held, exclusive; ann token 2 until t=513s, file 1.1
  = y: grace, exclusive; ann token 3 in grace until t=506s, file 1.3
t=504s host open
  -> session 4 opened
  * session 4 of host opened
  = x: held, exclusive; ann token 2 until t=513s, file 1.1
  = y: grace, exclusive; ann token 3 in grace until t=506s, file 1.3
t=505s ann renew y token=3 session=4
  -> renewed token 3 with session 4
  * y: renewed by ann, token 3
  = x: held, exclusive; ann token 2 until t=513s, file 1.1
  = y: held, exclusive; ann token 3 until t=534s, file 1.3
t=506s - settle
  -> settled
  = x: held, exclusive; ann token 2 until t=513s, file 1.1
  = y: held, exclusive; ann token 3 until t=534s, file 1.3
t=513s - settle
  -> settled
  * x: expired, token 2 of ann
  = x: grace, exclusive; ann token 2 in grace until t=518s, file 1.1
  = y: held, exclusive; ann token 3 until t=534s, file 1.3
