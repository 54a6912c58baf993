module github.com/go-coord/coord

go 1.25

require (
	github.com/go-zookeeper/zk v1.0.4
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	golang.org/x/sync v0.19.0 // indirect
)
