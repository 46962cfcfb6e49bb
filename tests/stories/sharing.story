# Readers share, writers do not starve.
t=0s r1 acquire db shared
  -> granted token 1 until t=30s
  * db: granted to r1, token 1, shared
  = db: held, shared; r1 token 1 until t=30s
t=1s r2 acquire db shared
  -> granted token 2 until t=31s
  * db: granted to r2, token 2, shared
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s
t=2s w acquire db
  -> refused, E_LOCK_CONFLICT: lock 'db' is held by r2 for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s
t=2s w acquire db wait
  -> waiting with ticket 1, 0 before it
  * db: w waits, ticket 1
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s; waiting: w (exclusive)
t=3s r3 acquire db shared
  -> refused, E_LOCK_CONFLICT: lock 'db' is shared by r2, and 1 wait before you; wait in the queue with 'latchfs run --shared'
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s; waiting: w (exclusive)
t=3s r3 acquire db shared wait
  -> waiting with ticket 2, 1 before it
  * db: r3 waits, ticket 2
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s; waiting: w (exclusive), r3 (shared)
t=4s r4 acquire db shared wait
  -> waiting with ticket 3, 2 before it
  * db: r4 waits, ticket 3
  = db: held, shared; r1 token 1 until t=30s; r2 token 2 until t=31s; waiting: w (exclusive), r3 (shared), r4 (shared)

# A renewal is no new request: r1 may go on.
t=5s r1 acquire db shared
  -> renewed token 1 until t=35s
  * db: renewed by r1, token 1
  = db: held, shared; r1 token 1 until t=35s; r2 token 2 until t=31s; waiting: w (exclusive), r3 (shared), r4 (shared)
t=6s r1 release db
  -> released
  * db: token 1 of r1 released after 6s
  = db: held, shared; r2 token 2 until t=31s; waiting: w (exclusive), r3 (shared), r4 (shared)
t=7s r2 release db
  -> released
  * db: token 2 of r2 released after 6s
  * db: granted to w, token 3, exclusive, ticket 1 after 5s
  = db: held, exclusive; w token 3 until t=37s; waiting: r3 (shared), r4 (shared)
t=8s w release db
  -> released
  * db: token 3 of w released after 1s
  * db: granted to r3, token 4, shared, ticket 2 after 5s
  * db: granted to r4, token 5, shared, ticket 3 after 4s
  = db: held, shared; r3 token 4 until t=38s; r4 token 5 until t=38s

# A writer that gives up lets those behind it in.
t=9s w acquire db wait
  -> waiting with ticket 4, 0 before it
  * db: w waits, ticket 4
  = db: held, shared; r3 token 4 until t=38s; r4 token 5 until t=38s; waiting: w (exclusive)
t=9s r5 acquire db shared wait
  -> waiting with ticket 5, 1 before it
  * db: r5 waits, ticket 5
  = db: held, shared; r3 token 4 until t=38s; r4 token 5 until t=38s; waiting: w (exclusive), r5 (shared)
t=10s w leave db ticket=4 gone
  -> left
  * db: w left, ticket 4, being gone
  * db: granted to r5, token 6, shared, ticket 5 after 1s
  = db: held, shared; r3 token 4 until t=38s; r4 token 5 until t=38s; r5 token 6 until t=40s
