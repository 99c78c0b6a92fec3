module lucius/worker

go 1.19
