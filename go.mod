module github.com/go-coord/coord

go 1.25

require (
	github.com/go-zookeeper/zk v1.0.4
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)
