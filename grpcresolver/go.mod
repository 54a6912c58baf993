module github.com/go-coord/coord/grpcresolver

go 1.25

require (
	github.com/go-coord/coord v0.0.0
	go.uber.org/goleak v1.3.0
	google.golang.org/grpc v1.79.3
)

require (
	github.com/go-zookeeper/zk v1.0.4 // indirect
	golang.org/x/net v0.48.0 // indirect
	golang.org/x/sync v0.19.0 // indirect
	golang.org/x/sys v0.39.0 // indirect
	golang.org/x/text v0.32.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20251202230838-ff82c1b0f217 // indirect
	google.golang.org/protobuf v1.36.10 // indirect
)

replace github.com/go-coord/coord => ../
