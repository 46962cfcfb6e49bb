# The lid opens at t=54s: stickiness is the point of grace.
t=20s laptop1 acquire build ttl=30s grace=5s
  -> granted token 1 until t=50s
  * build: granted to laptop1, token 1, exclusive
  = build: held, exclusive; laptop1 token 1 until t=50s
t=52s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build': grace period active: only laptop1 may take it back for 3s more; try again then
  * build: expired, token 1 of laptop1
  = build: grace, exclusive; laptop1 token 1 in grace until t=55s
t=54s laptop1 acquire build ttl=30s grace=5s
  -> renewed token 1 until t=84s
  * build: renewed by laptop1, token 1
  = build: held, exclusive; laptop1 token 1 until t=84s
t=56s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build' is held by laptop1 for 28s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = build: held, exclusive; laptop1 token 1 until t=84s
t=83.999999999s laptop2 acquire build
  -> refused, E_LOCK_CONFLICT: lock 'build' is held by laptop1 for 1ms more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = build: held, exclusive; laptop1 token 1 until t=84s
t=84s laptop2 acquire build
  -> refused, E_LOCK_CONFLICT: lock 'build': grace period active: only laptop1 may take it back for 5s more; try again then
  * build: expired, token 1 of laptop1
  = build: grace, exclusive; laptop1 token 1 in grace until t=89s

# Past grace even the old holder begins a new tenure.
t=89s laptop1 acquire build
  -> granted token 2 until t=119s
  * build: token 1 of laptop1 lapsed after 1m9s
  * build: granted to laptop1, token 2, exclusive
  = build: held, exclusive; laptop1 token 2 until t=119s
