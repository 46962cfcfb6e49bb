# A clock that goes back takes no time from anybody: the latest time seen counts.
t=100s a acquire x ttl=10s grace=5s
  -> granted token 1 until t=110s
  * x: granted to a, token 1, exclusive
  = x: held, exclusive; a token 1 until t=110s
t=50s b acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 10s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=110s
t=0s a renew x
  -> renewed token 1 until t=110s
  * x: renewed by a, token 1
  = x: held, exclusive; a token 1 until t=110s
t=109s b acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 1s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=110s
t=20s - settle
  -> settled
  = x: held, exclusive; a token 1 until t=110s
t=110s b acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x': grace period active: only a may take it back for 5s more; try again then
  * x: expired, token 1 of a
  = x: grace, exclusive; a token 1 in grace until t=115s
t=90s a renew x
  -> renewed token 1 until t=120s
  * x: renewed by a, token 1
  = x: held, exclusive; a token 1 until t=120s
t=119.999999999s b acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by a for 1ms more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; a token 1 until t=120s
