// Tour shows the main recipes of package coord, and a lock whose holder is cut off from the
// service. It needs nothing installed:
//
//	go run ./examples/tour
//
// The same on a real ensemble:
//
//	go run ./examples/tour -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/tour -backend etcd -servers host1:2379,host2:2379
//	go run ./examples/tour -backend postgres -servers postgres://user@host/database
//
// Every step of the story is checked; the exit status is 1 if a check fails.
package main

import "github.com/go-coord/coord/examples/internal/service"

func main() { service.Main("tour", story) }
