# What is remembered of a name beyond a tenure: the last handover, by which client, and how that tenure ended.
t=0s ann acquire x remember
t=1s ann annotate x handover=1:dirty
t=1s ann annotate x token=1 handover=2:dirty
t=2s ann annotate x token=1 handover=2:clean
t=2s ann annotate x token=1 handover=3:clean note=done
t=3s bob acquire x
t=4s ann release x
# A tenure that sets none leaves it as it was.
t=5s bob acquire x ttl=10s
t=15s bob settle
t=20s bob settle
# A tenure that expires.
t=21s cy acquire x ttl=10s
t=22s cy annotate x token=3 handover=1:dirty
t=40s root settle
# A late copy of an old request, under an old token.
t=41s dan acquire x ttl=60s
t=41s cy annotate x token=3 handover=2:clean
t=41s dan annotate x token=4 handover=0:dirty
t=42s root forget x
t=42s root steal x reason=he-has-left
t=42.5s root annotate x token=5 handover=1:early
t=44s root release x token=5 handover=1:mine
t=45s ed open ttl=30s
t=45s ed acquire x session=6
t=45s ed annotate x token=7 handover=1:dirty
t=46s ed end session=6
t=47s ed acquire y
t=47s ed release y token=8 handover=1:none
t=48s ed release y
t=49s root forget x
t=49s root forget x
t=50s ed acquire x
