# An administrator ends a hold-off before its time; a second time has no effect.
rules hold-off=24h
t=1s a acquire x wait
  -> waiting with ticket 1, 0 before it
  * x: a waits, ticket 1
  = x: free, exclusive; waiting: a (exclusive)
t=2s b acquire x wait
  -> waiting with ticket 2, 1 before it
  * x: b waits, ticket 2
  = x: free, exclusive; waiting: a (exclusive), b (exclusive)
t=3s root grant-now reason=none-is-left request=one
  -> locks are granted
  * the hold-off was ended by root (none-is-left)
  * x: granted to a, token 1, exclusive, ticket 1 after 2s
  = x: held, exclusive; a token 1 until t=33s; waiting: b (exclusive)
t=4s root grant-now reason=none-is-left
  -> locks are granted
  = x: held, exclusive; a token 1 until t=33s; waiting: b (exclusive)
t=5s c acquire y
  -> granted token 2 until t=35s
  * y: granted to c, token 2, exclusive
  = x: held, exclusive; a token 1 until t=33s; waiting: b (exclusive)
  = y: held, exclusive; c token 2 until t=35s
t=6s root grant-now reason=none-is-left request=one
  -> replayed from t=3s: locks are granted
  = x: held, exclusive; a token 1 until t=33s; waiting: b (exclusive)
  = y: held, exclusive; c token 2 until t=35s
