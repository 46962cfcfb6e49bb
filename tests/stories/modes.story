# Sole shared to exclusive is an upgrade: a new tenure, since others may have shown later tokens
# meanwhile. Back again keeps the token, and lets the others in.
t=0s a acquire db shared
  -> granted token 1 until t=30s
  * db: granted to a, token 1, shared
  = db: held, shared; a token 1 until t=30s
t=1s a acquire db
  -> renewed token 2 until t=31s
  * db: token 1 of a replaced after 1s
  * db: granted to a, token 2, exclusive
  = db: held, exclusive; a token 2 until t=31s
t=2s b acquire db shared wait
  -> waiting with ticket 1, 0 before it
  * db: b waits, ticket 1
  = db: held, exclusive; a token 2 until t=31s; waiting: b (shared)
t=2s c acquire db shared wait
  -> waiting with ticket 2, 1 before it
  * db: c waits, ticket 2
  = db: held, exclusive; a token 2 until t=31s; waiting: b (shared), c (shared)
t=3s a acquire db shared
  -> renewed token 2 until t=33s
  * db: renewed by a, token 2
  * db: granted to b, token 3, shared, ticket 1 after 1s
  * db: granted to c, token 4, shared, ticket 2 after 1s
  = db: held, shared; a token 2 until t=33s; b token 3 until t=33s; c token 4 until t=33s
t=4s a acquire db
  -> refused, E_LOCK_CONFLICT: lock 'db' is held by b for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = db: held, shared; a token 2 until t=33s; b token 3 until t=33s; c token 4 until t=33s
t=4s a acquire db wait
  -> refused, E_LOCK_CONFLICT: lock 'db' is held by b for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = db: held, shared; a token 2 until t=33s; b token 3 until t=33s; c token 4 until t=33s
t=5s b release db
  -> released
  * db: token 3 of b released after 2s
  = db: held, shared; a token 2 until t=33s; c token 4 until t=33s
t=5s c release db
  -> released
  * db: token 4 of c released after 2s
  = db: held, shared; a token 2 until t=33s
t=6s a acquire db
  -> renewed token 5 until t=36s
  * db: token 2 of a replaced after 5s
  * db: granted to a, token 5, exclusive
  = db: held, exclusive; a token 5 until t=36s

# Who waits to share and then asks to be alone gets what it asked for last.
t=7s b acquire db shared wait
  -> waiting with ticket 3, 0 before it
  * db: b waits, ticket 3
  = db: held, exclusive; a token 5 until t=36s; waiting: b (shared)
t=8s b acquire db wait
  -> waiting with ticket 3, 0 before it
  = db: held, exclusive; a token 5 until t=36s; waiting: b (exclusive)
t=9s a release db
  -> released
  * db: token 5 of a released after 3s
  * db: granted to b, token 6, exclusive, ticket 3 after 2s
  = db: held, exclusive; b token 6 until t=39s
