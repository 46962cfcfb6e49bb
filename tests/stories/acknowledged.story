# A client with a session tells which answers have arrived, and the engine forgets those.
rules requests=10
t=0s host open ttl=60s
  -> session 1 opened
  * session 1 of host opened
  = all free
t=1s host acquire x number=1.1
  -> granted token 2 until t=31s
  * x: granted to host, token 2, exclusive
  = x: held, exclusive; host token 2 until t=31s
t=1s host acquire y number=1.2
  -> granted token 3 until t=31s
  * y: granted to host, token 3, exclusive
  = x: held, exclusive; host token 2 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=2s host acquire y number=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = x: held, exclusive; host token 2 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=3s host release x token=2 number=1.3 answered-below=2
  -> released
  * x: token 2 of host released after 2s
  = y: held, exclusive; host token 3 until t=31s
# The answer to the second request may not have arrived, and is still known. A late copy of the first
# one is refused.
t=4s host acquire y number=1.2 answered-below=1
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=4s host acquire x number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = y: held, exclusive; host token 3 until t=31s
# With a refused request no answer is forgotten, but no copy of what it acknowledges is carried out.
t=5s host release x number=1.5 answered-below=4
  -> refused, E_LOCK_NOT_HELD: lock 'x' is free, so host has nothing to renew or release; acquire it with 'mkdir' or 'latchfs acquire x'
  = y: held, exclusive; host token 3 until t=31s
t=5s host acquire y number=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
t=5s host acquire x number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = y: held, exclusive; host token 3 until t=31s
# Without a number nothing is acknowledged.
t=5s host acquire z request=other answered-below=5
  -> granted token 4 until t=35s
  * z: granted to host, token 4, exclusive
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=5s host acquire y number=1.2
  -> replayed from t=1s: granted token 3 until t=31s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
# The ids of other callers, of other sessions and other keys of the same caller stay.
t=6s guest acquire w request=k-02
  -> granted token 5 until t=36s
  * w: granted to guest, token 5, exclusive
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=6s host open ttl=60s
  -> session 6 opened
  * session 6 of host opened
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=6s host annotate y token=3 number=6.1
  -> annotated
  * y: annotated, token 3
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=35s
t=6s host renew z number=1.6 answered-below=6
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
t=7s host annotate y token=3 number=6.1
  -> replayed from t=6s: annotated
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s host acquire y number=1.2
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=31s
  = z: held, exclusive; host token 4 until t=36s
t=7s host acquire y number=1.7 answered-below=7
  -> renewed token 3 until t=37s
  * y: renewed by host, token 3
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s

# The number of a request that waits can be acknowledged: it keeps its place.
t=8s guest open ttl=60s
  -> session 7 opened
  * session 7 of guest opened
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s
t=8s guest acquire z wait number=7.1
  -> waiting with ticket 1, 0 before it
  * z: guest waits, ticket 1
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s; waiting: guest (exclusive)
t=8s guest acquire z wait number=7.1
  -> replayed from t=8s: waiting with ticket 1, 0 before it
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s; waiting: guest (exclusive)
t=9s guest settle number=7.2 answered-below=2
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 4 until t=36s; waiting: guest (exclusive)
t=10s host release z
  -> released
  * z: token 4 of host released after 5s
  * z: granted to guest, token 8, exclusive, ticket 1 after 2s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 8 until t=40s
t=11s guest acquire z wait number=7.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 7 came late: another copy was decided before it; look at the lock, and ask anew
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 8 until t=40s
# A request that waits without an acknowledgement finds its grant under its number.
t=11s host acquire z wait number=6.2
  -> waiting with ticket 2, 0 before it
  * z: host waits, ticket 2
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; guest token 8 until t=40s; waiting: host (exclusive)
t=12s guest release z
  -> released
  * z: token 8 of guest released after 2s
  * z: granted to host, token 9, exclusive, ticket 2 after 1s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=12s host acquire z wait number=6.2
  -> replayed from t=12s: granted token 9 until t=42s
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
# A number that its own request acknowledges is late at once; earlier acknowledgements stay.
t=12s guest settle number=7.3 answered-below=4
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 7 came late: another copy was decided before it; look at the lock, and ask anew
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=12s guest settle number=7.3
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 7 came late: another copy was decided before it; look at the lock, and ask anew
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=12s guest settle number=7.4 answered-below=1
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=13s guest settle number=7.2
  -> replayed from t=9s: settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
# At most 512 requests of a session have no answer.
t=13s guest settle number=7.516 answered-below=4
  -> refused, E_LIMIT: a session has at most 512 requests without an answer; repeat the earlier ones first
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=13s guest settle number=7.515 answered-below=4
  -> settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
t=13s guest settle number=7.515 answered-below=4
  -> replayed from t=13s: settled
  = w: held, exclusive; guest token 5 until t=36s
  = y: held, exclusive; host token 3 until t=37s
  = z: held, exclusive; host token 9 until t=42s
