# During a hold-off nothing is granted. Requests that wait are queued, without a holder.
rules hold-off=60s
t=1s a acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x': nothing is granted for 59s more, because the cluster was restored from a backup, and a client may still rely on a lease from before; wait with 'latchfs run' or 'latchfs wait'; if no such client is left, an administrator may end this with 'latchfs cluster grant-now --reason WHY'
  = all free
t=2s a acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: a waits, ticket 1
  = x: free, exclusive; waiting: a (exclusive)
t=3s b acquire x wait ttl=10s
  -> waiting with ticket 2, 1 before it
  * x: b waits, ticket 2
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
t=4s c acquire y shared wait=5s
  -> waiting with ticket 3, 0 before it
  * y: c waits, ticket 3
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared)
t=5s d acquire y shared wait
  -> waiting with ticket 4, 1 before it
  * y: d waits, ticket 4
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared), d (shared)
t=5s d acquire y shared
  -> refused, E_LOCK_CONFLICT: lock 'y': nothing is granted for 55s more, because the cluster was restored from a backup, and a client may still rely on a lease from before; wait with 'latchfs run' or 'latchfs wait'; if no such client is left, an administrator may end this with 'latchfs cluster grant-now --reason WHY'
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared), d (shared)
t=6s root steal x reason=it-must-be
  -> refused, E_LOCK_CONFLICT: lock 'x': nothing is granted for 54s more, because the cluster was restored from a backup, and a client may still rely on a lease from before; wait with 'latchfs run' or 'latchfs wait'; if no such client is left, an administrator may end this with 'latchfs cluster grant-now --reason WHY'
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared), d (shared)
t=7s e open ttl=10s
  -> session 1 opened
  * session 1 of e opened
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared), d (shared)
t=8s e acquire z session=1 wait
  -> waiting with ticket 5, 0 before it
  * z: e waits, ticket 5
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: c (shared), d (shared)
  = z: free, exclusive; waiting: e (exclusive)
t=9s - settle
  -> settled
  * y: c left, ticket 3, out of patience
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: d (shared)
  = z: free, exclusive; waiting: e (exclusive)

# Whoever waited for z is gone, and so is all that was known of it.
t=30s - settle
  -> settled
  * session 1 of e expired
  * z: e left, ticket 5, its session being over
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: d (shared)
t=31s a forget x
  -> refused, E_LOCK_CONFLICT: lock 'x': nothing is granted for 29s more, because the cluster was restored from a backup, and a client may still rely on a lease from before; wait with 'latchfs run' or 'latchfs wait'; if no such client is left, an administrator may end this with 'latchfs cluster grant-now --reason WHY'
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
  = y: free, exclusive; waiting: d (shared)
t=32s root reset reason=gone of=b
  -> reset 0 holds, 1 places
  * x: b left, ticket 2, being reset
  = x: free, exclusive; waiting: a (exclusive)
  = y: free, exclusive; waiting: d (shared)
t=33s f acquire x wait=0s
  -> refused, E_LOCK_CONFLICT: lock 'x': nothing is granted for 27s more, because the cluster was restored from a backup, and a client may still rely on a lease from before; wait with 'latchfs run' or 'latchfs wait'; if no such client is left, an administrator may end this with 'latchfs cluster grant-now --reason WHY'
  = x: free, exclusive; waiting: a (exclusive)
  = y: free, exclusive; waiting: d (shared)

# At its end each queue is served in one step.
t=60s - settle
  -> settled
  * the hold-off is over
  * x: granted to a, token 2, exclusive, ticket 1 after 58s
  * y: granted to d, token 3, shared, ticket 4 after 55s
  = x: held, exclusive; a token 2 until t=90s
  = y: held, shared; d token 3 until t=90s
t=61s root grant-now reason=late
  -> locks are granted
  = x: held, exclusive; a token 2 until t=90s
  = y: held, shared; d token 3 until t=90s
