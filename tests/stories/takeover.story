# The open file through which a text was written takes that lease over, before all waiters.
t=0s host open unending
t=1s ann acquire x firm text=mine
t=2s bob acquire x wait
t=2s ann acquire x file=1.1 wait=5s over=1

# Without the token, and with another one, the request is like any other.
t=3s ann acquire x file=1.1
t=3s bob acquire x file=1.1 over=2
t=4s ann acquire x file=1.1 wait over=2
t=5s ann acquire x file=1.2 over=2
t=60s ann release x token=2 file=1.1

# The mode may change with it. A shared lock that others share stays shared.
t=61s ann acquire y firm
t=61s cy acquire y shared wait
t=62s ann acquire y shared file=1.3 over=4
t=63s cy acquire y shared
t=64s ann acquire z firm
t=64s ann acquire z shared
t=64s cy acquire z shared
t=65s ann acquire z file=1.4 wait over=6
t=66s cy release z
t=67s ann acquire z file=1.4 wait over=6

# A lease that another file has made or locked is not taken over by its token.
t=68s ann acquire v firm=1.5
t=68s ann acquire v file=1.6 over=9
t=69s ann acquire v file=1.5 over=9
t=69s ann acquire v file=1.6 over=9
t=70s ann acquire v file=1.6 over=99 wait
t=71s host end session=1

# A token of a lease that is over counts for nothing.
t=72s host open unending
t=73s ann acquire x file=10.1 over=2
