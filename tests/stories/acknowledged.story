# A client with a session tells which answers have arrived, and the engine forgets those.
rules requests=10
t=0s host open ttl=60s
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s host acquire x request=k-01 order=1.1
  -> granted token 2 until t=31s
  * x: granted to host, token 2, exclusive
  = x: held, exclusive; host token 2 until t=31s
t=1s host acquire y request=k-02 order=1.2
  -> granted token 3 until t=31s
  * y: granted to host, token 3, exclusive
  = x: held, exclusive; host token 2 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=2s host acquire y request=k-02 order=1.3
  -> replayed from t=1s: granted token 3 until t=31s
  = x: held, exclusive; host token 2 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=3s host release x token=2 request=k-03 order=1.4 acknowledged=k-01..k-02
  -> released
  * x: token 2 of host released after 2s
  = y: held, exclusive; host token 3 until t=31s
# The answer to k-02 may not have arrived, and is still known. A late copy of k-01 is refused by its
# place among the requests of the session.
t=4s host acquire y request=k-02 order=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=4s host acquire x request=k-01 order=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: a later request was carried out before it; look at the lock, and ask anew
  = y: held, exclusive; host token 3 until t=31s
# A refused request acknowledges nothing, nor does one without an order.
t=5s host release x request=k-04 order=1.5 acknowledged=k-01..k-04
  -> refused, E_LOCK_NOT_HELD: lock 'x' is free, so host has nothing to renew or release; acquire it with 'mkdir' or 'latchfs acquire x'
  = y: held, exclusive; host token 3 until t=31s
t=5s host acquire y request=k-02 order=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=5s host acquire z request=other acknowledged=k-01..k-04
  -> granted token 4 until t=35s
  * z: granted to host, token 4, exclusive
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=5s host acquire y request=k-02 order=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
# The ids of other callers and other keys of the same caller stay.
t=6s guest acquire w request=k-02
  -> granted token 5 until t=36s
  * w: granted to guest, token 5, exclusive
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=6s host renew z request=k-05 order=1.6 acknowledged=k-01..k-05
  -> renewed token 4 until t=36s
  * z: renewed by host, token 4
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s guest acquire w request=k-02
  -> replayed from t=6s: granted token 5 until t=36s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s host acquire z request=other
  -> replayed from t=5s: granted token 4 until t=35s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s host acquire y request=k-02 order=1.2
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: a later request was carried out before it; look at the lock, and ask anew
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s host acquire y request=k-02 order=1.7
  -> renewed token 3 until t=37s
  * y: renewed by host, token 3
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s

# The id of a request that waits can be acknowledged: it keeps its place, and the id is free.
t=8s guest open ttl=60s
  -> session 6 opened
  * session 6 of guest opened
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s
t=8s guest acquire z wait request=g-1 order=6.1
  -> waiting with ticket 1, 0 before it
  * z: guest waits, ticket 1
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s; waiting: guest (exclusive)
t=9s guest settle request=g-2 order=6.2 acknowledged=g-1..g-2
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s; waiting: guest (exclusive)
t=10s host release z
  -> released
  * z: token 4 of host released after 5s
  * z: granted to guest, token 7, exclusive, ticket 1 after 2s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 7 until t=40s
t=11s guest settle request=g-1
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 7 until t=40s
# An empty range, or one that ends before it begins, is of no effect.
t=12s guest settle request=g-3 order=6.3 acknowledged=g-2..g-2
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 7 until t=40s
t=12s guest settle request=g-4 order=6.4 acknowledged=g-9..g-1
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 7 until t=40s
t=13s guest settle request=g-2
  -> replayed from t=9s: settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 7 until t=40s
