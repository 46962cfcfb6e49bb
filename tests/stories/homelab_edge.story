# The grace is over at t=55s sharp: neither before nor after.
t=20s laptop1 acquire build ttl=30s grace=5s
  -> granted token 1 until t=50s
  * build: granted to laptop1, token 1, exclusive
  = build: held, exclusive; laptop1 token 1 until t=50s
t=55s laptop2 acquire build ttl=30s grace=5s
  -> granted token 2 until t=85s
  * build: expired, token 1 of laptop1
  * build: token 1 of laptop1 lapsed after 35s
  * build: granted to laptop2, token 2, exclusive
  = build: held, exclusive; laptop2 token 2 until t=85s
