module github.com/go-coord/coord/gocronlock

go 1.25

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/go-coord/coord v0.0.0
	github.com/google/uuid v1.6.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/go-zookeeper/zk v1.0.4 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	golang.org/x/sync v0.19.0 // indirect
)

replace github.com/go-coord/coord => ../
