package coord_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// An instance registers its address, and others find it.
func ExampleGroup() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	g := coord.NewGroup[string](c, "/services/search", nil)
	me, err := g.Join(ctx, "node-1", "10.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	defer me.Leave()

	m, err := g.Member(ctx, "node-1")
	fmt.Println(m.Value, err)
	// Output: 10.0.0.1:8080 <nil>
}

// Follow which members join and leave.
func ExampleGroup_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	g := coord.NewGroup[string](c, "/services/search", nil)
	me, err := g.Join(ctx, "node-1", "10.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	for members := range g.Watch(ctx) {
		for _, m := range members.Joined {
			fmt.Println("joined:", m.ID)
			me.Leave()
		}
		for _, m := range members.Left {
			fmt.Println("left:", m.ID)
			cancel()
		}
	}
	// Output:
	// joined: node-1
	// left: node-1
}

// Wait for a member. The end of the loop ends the watch.
func ExampleGroup_Changes() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	g := coord.NewGroup[string](c, "/services/search", nil)
	if _, err := g.Join(ctx, "node-1", "10.0.0.1:8080"); err != nil {
		log.Fatal(err)
	}
	for members := range g.Changes(ctx) {
		if members.Err != nil {
			log.Fatal(members.Err) // the last element
		}
		if len(members.Members) > 0 {
			fmt.Println(members.Members[0].ID, "is there")
			break
		}
	}
	// Output: node-1 is there
}

// Spread work over the instances of a service.
func ExampleGroup_Picker() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	g := coord.NewGroup[string](c, "/services/search", nil)
	for _, id := range []string{"node-1", "node-2"} {
		if _, err := g.Join(ctx, id, id+":8080"); err != nil {
			log.Fatal(err)
		}
	}
	p, err := g.Picker(ctx, coord.PickRoundRobin)
	if err != nil {
		log.Fatal(err)
	}
	for range 4 { // begins at any of the members
		m, err := p.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.Value)
	}
	// Unordered output:
	// node-1:8080
	// node-2:8080
	// node-1:8080
	// node-2:8080
}

// Call the instances of a service with net/http. An instance that has died is in the group until its
// session has expired, so a call that fails is made again, to the next one.
func ExamplePicker() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	g := coord.NewGroup[string](c, "/services/search", nil)
	for _, id := range []string{"node-1", "node-2", "node-3"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, id) }))
		defer server.Close()
		if _, err := g.Join(ctx, id, server.URL); err != nil {
			log.Fatal(err)
		}
		if id == "node-2" {
			server.Close() // it dies, and does not leave
		}
	}
	p, err := g.Picker(ctx, coord.PickRoundRobin)
	if err != nil {
		log.Fatal(err)
	}
	get := func(path string) (answer []byte, err error) {
		for range 3 {
			m, e := p.Next(ctx) // waits while there is none
			if e != nil {
				return nil, errors.Join(err, e)
			}
			resp, e := http.Get(m.Value + path)
			if e != nil {
				err = errors.Join(err, e) // a request that is not idempotent must not be made again
				continue
			}
			defer resp.Body.Close()
			return io.ReadAll(resp.Body)
		}
		return nil, err
	}
	for range 2 { // a Picker begins at any member
		answer, err := get("/")
		fmt.Println(string(answer), err)
	}
	// Unordered output:
	// node-1 <nil>
	// node-3 <nil>
}
