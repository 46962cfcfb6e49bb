# A thief that goes at once lets nobody in before the old holder has had its second to stop.
t=0s ann acquire x ttl=60s
  -> granted token 1 until t=60s
  * x: granted to ann, token 1, exclusive
  = x: held, exclusive; ann token 1 until t=60s
t=1s bob acquire x wait ttl=10s
  -> waiting with ticket 1, 0 before it
  * x: bob waits, ticket 1
  = x: held, exclusive; ann token 1 until t=60s; waiting: bob (exclusive)
t=2s root steal x reason=stuck
  -> stolen token 2 until t=33s, begins t=3s
  * x: token 1 of ann stolen by root (stuck) after 2s
  * x: granted to root, token 2, exclusive
  = x: held, exclusive; root token 2 until t=33s, firm; waiting: bob (exclusive)
t=2.1s root release x
  -> released
  = x: held, exclusive; root token 2 until t=3s, firm; waiting: bob (exclusive)
t=2.999999999s bob acquire x
  -> refused, E_LOCK_CONFLICT: lock 'x' was taken over by root, and nobody may use it for 1ms more; try again then
  = x: held, exclusive; root token 2 until t=3s, firm; waiting: bob (exclusive)
t=3s - settle
  -> settled
  * x: token 2 of root released after 0ms
  * x: granted to bob, token 3, exclusive, ticket 1 after 2s
  = x: held, exclusive; bob token 3 until t=13s

t=4s root open ttl=1s grace=0s
  -> session 4 opened
  * session 4 of root opened
  = x: held, exclusive; bob token 3 until t=13s
t=4.5s root steal x reason=again session=4
  -> stolen token 5 with session 4, begins t=5.5s
  * x: token 3 of bob stolen by root (again) after 1.5s
  * x: granted to root, token 5, exclusive
  = x: held, exclusive; root token 5 until t=5s, firm
t=4.6s carl acquire x wait
  -> waiting with ticket 2, 0 before it
  * x: carl waits, ticket 2
  = x: held, exclusive; root token 5 until t=5s, firm; waiting: carl (exclusive)
t=5s - settle
  -> settled
  * session 4 of root expired
  = x: held, exclusive; root token 5 until t=5.5s, firm; waiting: carl (exclusive)
t=5.5s - settle
  -> settled
  * x: token 5 of root released after 0ms
  * x: granted to carl, token 6, exclusive, ticket 2 after 900ms
  = x: held, exclusive; carl token 6 until t=35.5s

# All holders of a shared lock lose it.
t=10s ann acquire db shared
  -> granted token 7 until t=40s
  * db: granted to ann, token 7, shared
  = db: held, shared; ann token 7 until t=40s
  = x: held, exclusive; carl token 6 until t=35.5s
t=10s bob acquire db shared
  -> granted token 8 until t=40s
  * db: granted to bob, token 8, shared
  = db: held, shared; ann token 7 until t=40s; bob token 8 until t=40s
  = x: held, exclusive; carl token 6 until t=35.5s
t=11s root steal db reason=upgrade
  -> stolen token 9 until t=42s, begins t=12s
  * db: token 7 of ann stolen by root (upgrade) after 1s
  * db: token 8 of bob stolen by root (upgrade) after 1s
  * db: granted to root, token 9, exclusive
  = db: held, exclusive; root token 9 until t=42s, firm
  = x: held, exclusive; carl token 6 until t=35.5s
