complete --keep-order --exclusive --command latchfs --arguments "(LATCHFS_COMPLETE=fish latchfs -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
