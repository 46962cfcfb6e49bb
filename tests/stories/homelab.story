# The timeline of the homelab seed, to the second, with the edges that it leaves unsaid.
t=0s laptop1 acquire build ttl=30s grace=5s
  -> granted token 1 until t=30s
  * build: granted to laptop1, token 1, exclusive
  = build: held, exclusive; laptop1 token 1 until t=30s
t=10s laptop1 acquire build ttl=30s grace=5s
  -> renewed token 1 until t=40s
  * build: renewed by laptop1, token 1
  = build: held, exclusive; laptop1 token 1 until t=40s
t=20s laptop1 acquire build ttl=30s grace=5s
  -> renewed token 1 until t=50s
  * build: renewed by laptop1, token 1
  = build: held, exclusive; laptop1 token 1 until t=50s

# t=25s: the lid closes. Nothing is sent, and nothing has to be.
t=25s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build' is held by laptop1 for 25s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = build: held, exclusive; laptop1 token 1 until t=50s
t=49.999999999s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build' is held by laptop1 for 1ms more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = build: held, exclusive; laptop1 token 1 until t=50s
t=50s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build': grace period active: only laptop1 may take it back for 5s more; try again then
  * build: expired, token 1 of laptop1
  = build: grace, exclusive; laptop1 token 1 in grace until t=55s
t=52s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build': grace period active: only laptop1 may take it back for 3s more; try again then
  = build: grace, exclusive; laptop1 token 1 in grace until t=55s
t=54.999999999s laptop2 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build': grace period active: only laptop1 may take it back for 1ms more; try again then
  = build: grace, exclusive; laptop1 token 1 in grace until t=55s
t=56s laptop2 acquire build ttl=30s grace=5s
  -> granted token 2 until t=86s
  * build: token 1 of laptop1 lapsed after 56s
  * build: granted to laptop2, token 2, exclusive
  = build: held, exclusive; laptop2 token 2 until t=86s

# The lid opens. laptop1 still believes in token 1, and is told otherwise.
t=57s laptop1 renew build token=1
  -> refused, E_FENCING_MISMATCH: token 1 of lock 'build' is not the current one (2); stop the work that it guarded: another tenure has begun
  = build: held, exclusive; laptop2 token 2 until t=86s
t=57s laptop1 acquire build ttl=30s grace=5s
  -> refused, E_LOCK_CONFLICT: lock 'build' is held by laptop2 for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = build: held, exclusive; laptop2 token 2 until t=86s
t=57s laptop1 release build
  -> refused, E_LOCK_NOT_HELD: lock 'build' is held by laptop2, not by laptop1; only its holder can renew or release it
  = build: held, exclusive; laptop2 token 2 until t=86s
