# Each limit is met by a refusal that leaves nothing behind.
rules locks=2 waiters=3 holders=2 sessions=1
t=0s a acquire x
  -> granted token 1 until t=30s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=30s
t=1s a acquire y shared
  -> granted token 2 until t=31s
  * y: granted to a, token 2, shared
  = x: held, exclusive; a token 1 until t=30s
  = y: held, shared; a token 2 until t=31s
t=2s a acquire z
  -> refused, E_LIMIT: 2 locks are held, which is the limit; release some
  = x: held, exclusive; a token 1 until t=30s
  = y: held, shared; a token 2 until t=31s
t=2s root steal z reason=no-room
  -> refused, E_LIMIT: 2 locks are held, which is the limit; release some
  = x: held, exclusive; a token 1 until t=30s
  = y: held, shared; a token 2 until t=31s
t=3s b acquire y shared
  -> granted token 3 until t=33s
  * y: granted to b, token 3, shared
  = x: held, exclusive; a token 1 until t=30s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=4s c acquire y shared
  -> refused, E_LIMIT: 2 share this lock, which is the limit; try again later
  = x: held, exclusive; a token 1 until t=30s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=5s b acquire x wait shared
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=5s c acquire x wait shared
  -> waiting with ticket 2, 1 before it
  * x: c waits, ticket 2
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=5s d acquire x wait shared
  -> waiting with ticket 3, 2 before it
  * x: d waits, ticket 3
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared), d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=6s e acquire x wait
  -> refused, E_LIMIT: 3 wait for this lock, which is the limit; try again later
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared), d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=7s a move x to=z
  -> refused, E_LIMIT: 2 locks are held, which is the limit; release some
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared), d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=8s a open
  -> session 4 opened
  * session 4 of a opened
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared), d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=9s b open
  -> refused, E_LIMIT: 1 sessions are open, which is the limit; end some
  = x: held, exclusive; a token 1 until t=30s; waiting: b (shared), c (shared), d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s

# From the line, too, no more are let in than may share; who comes then waits behind the rest.
t=10s a release x
  -> released
  * x: token 1 of a released after 10s
  * x: granted to b, token 5, shared, ticket 1 after 5s
  * x: granted to c, token 6, shared, ticket 2 after 5s
  = x: held, shared; b token 5 until t=40s; c token 6 until t=40s; waiting: d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=11s e acquire x shared
  -> refused, E_LOCK_CONFLICT: lock 'x' is shared by c, and 1 wait before you; wait in the queue with 'latchfs run --shared'
  = x: held, shared; b token 5 until t=40s; c token 6 until t=40s; waiting: d (shared)
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=12s b release x
  -> released
  * x: token 5 of b released after 2s
  * x: granted to d, token 7, shared, ticket 3 after 7s
  = x: held, shared; c token 6 until t=40s; d token 7 until t=42s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=13s c release x
  -> released
  * x: token 6 of c released after 3s
  = x: held, shared; d token 7 until t=42s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=14s e acquire x shared
  -> granted token 8 until t=44s
  * x: granted to e, token 8, shared
  = x: held, shared; d token 7 until t=42s; e token 8 until t=44s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
t=15s d release x
  -> released
  * x: token 7 of d released after 3s
  = x: held, shared; e token 8 until t=44s
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s

# With nobody waiting at the old name, a move needs no more room than there was.
t=16s e move x to=z
  -> moved token 9 until t=46s
  * x: token 8 of e moved to z after 2s
  * z: granted to e, token 9, shared
  = y: held, shared; a token 2 until t=31s; b token 3 until t=33s
  = z: held, shared; e token 9 until t=46s
