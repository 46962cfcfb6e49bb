# A wait ends when its patience does, to the nanosecond; no time at all is no wait.
t=0s a acquire x ttl=60s
  -> granted token 1 until t=60s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=60s
t=1s b acquire x wait=3s
  -> waiting with ticket 1, 0 before it
  * x: b waits, ticket 1
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=1s c acquire x wait=0s
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 59s more (1 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=3.999999999s - settle
  -> settled
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=4s - settle
  -> settled
  * x: b left, ticket 1, out of patience
  = x: held, exclusive; a token 1 until t=60s
t=5s b acquire x wait=3s
  -> waiting with ticket 2, 0 before it
  * x: b waits, ticket 2
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)

# Asking again keeps the place; what was said last counts.
t=6s b acquire x wait=10s note=again
  -> waiting with ticket 2, 0 before it
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=8s - settle
  -> settled
  = x: held, exclusive; a token 1 until t=60s; waiting: b (exclusive)
t=15s a release x
  -> released
  * x: token 1 of a released after 15s
  * x: granted to b, token 2, exclusive, ticket 2 after 10s
  = x: held, exclusive; b token 2 until t=45s, note again
