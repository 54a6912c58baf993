// Tour shows what the main recipes of package coord do, and what a lock does when
// its holder is cut off from the service. It needs nothing installed:
//
//	go run ./examples/tour
//
// The same on a real ensemble:
//
//	go run ./examples/tour -backend zookeeper -servers host1:2181,host2:2181
//
// Everything that it tells is checked; the exit status is 1 if something is not
// as told.
package main

import "github.com/go-coord/coord/examples/internal/service"

func main() { service.Main("tour", story) }
