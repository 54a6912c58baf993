module github.com/go-coord/coord

go 1.25

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/go-zookeeper/zk v1.0.4
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.19.0
)
