# A refusal is not remembered, so a late copy of a refused request finds nothing that tells it from
# a new one but its number, which its session has used.
t=0s host open ttl=60s
  -> session 1 opened
  * session 1 of host opened
  = all free
t=0s other acquire x
  -> granted token 2 until t=30s
  * x: granted to other, token 2, exclusive
  = x: held, exclusive; other token 2 until t=30s
t=1s host acquire x shared file=1.7 session=1 number=1.1
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by other for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; other token 2 until t=30s
t=2s other release x
  -> released
  * x: token 2 of other released after 2s
  = all free
# The host acquires the lock by name, alone.
t=3s host acquire x ttl=30s number=1.2
  -> granted token 3 until t=33s
  * x: granted to host, token 3, exclusive
  = x: held, exclusive; host token 3 until t=33s
# The network delivers the shared request of the open file once more: it would make the lease shared,
# under the token that the host believes to hold alone.
t=4s host acquire x shared file=1.7 session=1 number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = x: held, exclusive; host token 3 until t=33s
t=4s other acquire x shared
  -> refused, E_LOCK_CONFLICT: lock 'x' is held by host for 29s more (0 waiting); wait with 'latchfs run' or 'latchfs wait'
  = x: held, exclusive; host token 3 until t=33s
# Nor does a copy shorten, extend or move what the host holds since.
t=5s host acquire x ttl=2s number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = x: held, exclusive; host token 3 until t=33s
t=5s host renew x ttl=2s number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = x: held, exclusive; host token 3 until t=33s
t=5s host move x to=y number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = x: held, exclusive; host token 3 until t=33s
t=5s host steal x reason=why number=1.1
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 1 came late: another copy was decided before it; look at the lock, and ask anew
  = x: held, exclusive; host token 3 until t=33s
# A request that was done gets its first answer for as long as that is known.
t=6s host acquire x ttl=30s number=1.2
  -> replayed from t=3s: granted token 3 until t=33s
  = x: held, exclusive; host token 3 until t=33s
# A number belongs to one request, as a key does.
t=6s host acquire x ttl=2s number=1.2
  -> refused, E_INVALID: request key '1.2' was used before for another request; choose a new key for each request, and repeat only the same request
  = x: held, exclusive; host token 3 until t=33s
# The sender asks anew for what was refused, under a new number.
t=7s host acquire x shared file=1.7 session=1 number=1.3
  -> renewed token 3 with session 1
  * x: renewed by host, token 3
  = x: held, shared; host token 3 until t=60s, file 1.7
# The first copy of an earlier request may arrive later, as long as its sender has no answer to it.
t=7s host renew x number=1.5
  -> renewed token 3 with session 1
  * x: renewed by host, token 3
  = x: held, shared; host token 3 until t=60s, file 1.7
t=7s host renew x number=1.4
  -> renewed token 3 with session 1
  * x: renewed by host, token 3
  = x: held, shared; host token 3 until t=60s, file 1.7
# Numbers belong to the session: those of another begin anew, and one that is over has none.
t=8s host open ttl=60s
  -> session 4 opened
  * session 4 of host opened
  = x: held, shared; host token 3 until t=60s, file 1.7
t=8s host renew x number=4.1
  -> renewed token 3 with session 1
  * x: renewed by host, token 3
  = x: held, shared; host token 3 until t=60s, file 1.7
t=9s host end session=1
  -> session ended
  * x: token 3 of host released after 6s
  * session 1 of host closed
  = all free
t=9s host acquire z number=1.8
  -> refused, E_LOCK_EXPIRED: session 1 is over, and its leases are lost; open a new one
  = all free
t=9s host acquire z number=4.2
  -> granted token 5 until t=39s
  * z: granted to host, token 5, exclusive
  = z: held, exclusive; host token 5 until t=39s
# The answers of a session that is over are still known: the client may have lost both.
t=9s host acquire x ttl=30s number=1.2
  -> replayed from t=3s: granted token 3 until t=33s
  = z: held, exclusive; host token 5 until t=39s
# What the session took for other callers stays theirs: a number is one of its caller, too.
t=9s other renew z number=4.2
  -> refused, E_CONSISTENCY_UNAVAILABLE: this copy of a request of session 4 came late: another copy was decided before it; look at the lock, and ask anew
  = z: held, exclusive; host token 5 until t=39s
