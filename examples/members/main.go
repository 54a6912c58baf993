// Members is a list of the instances of a service: each registers its address, and a caller
// picks one of them for each call. One instance leaves cleanly, and another one is killed.
//
//	go run ./examples/members
//	go run ./examples/members -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/members -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("members", story) }

// Endpoint is the data that an instance publishes.
type Endpoint struct{ Address string }

// An instance serves HTTP on an address that it has registered.
type instance struct {
	name   string
	http   *http.Server
	member *coord.Membership[Endpoint]
	served chan error
}

func start(ctx context.Context, c *coord.Client, name string) (*instance, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	handler := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }
	i := &instance{name: name, http: &http.Server{Handler: http.HandlerFunc(handler)}, served: make(chan error, 1)}
	go func() { i.served <- i.http.Serve(listener) }()
	// Register last: an instance in the list can be called. The membership maintains itself
	// from now on, also when the session is lost and replaced.
	group := coord.NewGroup[Endpoint](c, "/instances", nil)
	i.member, err = group.Join(ctx, name, Endpoint{listener.Addr().String()})
	if err != nil {
		return nil, errors.Join(err, i.kill())
	}
	return i, nil
}

// stop leaves the list first, and then finishes the calls under way.
func (i *instance) stop(ctx context.Context) error {
	err := i.member.Leave()
	// A caller may have picked this instance just before the change of the list.
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
	err = errors.Join(err, i.http.Shutdown(ctx))
	<-i.served
	return err
}

// kill ends the instance as SIGKILL ends a process, without leaving.
func (i *instance) kill() error {
	err := i.http.Close()
	<-i.served
	return err
}

// A caller calls the instances in turn.
type caller struct {
	http   http.Client
	picker *coord.Picker[Endpoint]
	failed int
}

// call tries another instance if one does not answer: a dead instance is in the list until
// the service has noticed, which takes the session timeout.
func (c *caller) call(ctx context.Context) (answer string, failed error) {
	for range 3 {
		m, err := c.picker.Next(ctx) // waits while there is none
		if err != nil {
			return "", err
		}
		if answer, err = c.get(ctx, "http://"+m.Value.Address); err == nil {
			return answer, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", m.ID, err))
		c.failed++
	}
	return "", failed
}

func (c *caller) get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
