package coord_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

func ExampleCache() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s, err := c.Session(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.Commit(ctx,
		backend.Create("/config", nil, backend.Persistent),
		backend.Create("/config/colour", []byte("red"), backend.Persistent),
	)
	if err != nil {
		log.Fatal(err)
	}

	cache := coord.NewCache(c, "/config", nil)
	ended := make(chan error)
	go func() { ended <- cache.Run(ctx) }()
	select {
	case <-cache.Synced():
	case err := <-ended: // it can fail: no permission, the limit
		log.Fatal(err)
	}
	colour, ok := cache.Get("/config/colour") // no round trip
	fmt.Println(string(colour.Data), ok)
	cancel()
	<-ended
	// Output: red true
}

// A loop over the changes has the whole copy first.
func ExampleCache_Events() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s, err := c.Session(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := s.Commit(ctx, backend.Create("/config", []byte("v1"), backend.Persistent)); err != nil {
		log.Fatal(err)
	}

	cache := coord.NewCache(c, "/config", nil)
	ended := make(chan error)
	go func() { ended <- cache.Run(ctx) }()
	next := "v2"
	for batch, err := range cache.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range batch {
			fmt.Println(e.Kind, e.Path, string(e.Node.Data))
		}
		if next == "" {
			cancel()
			continue
		}
		if _, err := s.Commit(ctx, backend.SetData("/config", []byte(next), backend.AnyVersion)); err != nil {
			log.Fatal(err)
		}
		next = ""
	}
	<-ended
	// Output:
	// created /config v1
	// changed /config v2
}

// The settings of all tenants, decoded once for each change.
func ExampleCacheView() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	type Tenant struct{ Quota int }
	for name, quota := range map[string]int{"a": 10, "b": 20} {
		if _, err := coord.NewValue[Tenant](c, "/tenants/"+name, nil).Set(ctx, Tenant{quota}); err != nil {
			log.Fatal(err)
		}
	}

	cache := coord.NewCache(c, "/tenants", nil)
	tenants := coord.NewCacheView(cache, coord.JSON[Tenant]())
	ended := make(chan error)
	go func() { ended <- cache.Run(ctx) }()
	select {
	case <-cache.Synced():
	case err := <-ended:
		log.Fatal(err)
	}
	if b, ok := tenants.Get("/tenants/b"); ok {
		fmt.Println("b", b.Value.Quota)
	}
	for path, tenant := range tenants.All("/tenants") {
		fmt.Println(path, tenant.Value.Quota, tenant.Err)
	}
	cancel()
	<-ended
	// Output:
	// b 20
	// /tenants/a 10 <nil>
	// /tenants/b 20 <nil>
}
