package inspect_test

import (
	"context"
	"fmt"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/inspect"
)

// Path reports the state of a path. For a person, print the Report itself.
func ExamplePath() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	h, err := coord.NewMutex(c, "/locks/reindex", nil).Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Release()

	in, err := inspect.Path(ctx, c, "/locks/reindex", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(in.Recipe+":", in.Summary)
	for _, who := range in.Mutex.Contenders {
		fmt.Println("holds:", who.Holds, "with the token of our hold:", who.Token == h.Token())
	}
	// Output:
	// mutex: held, no waiters
	// holds: true with the token of our hold: true
}

// Tree finds the recipes below a path. For a person, print the Survey itself.
func ExampleTree() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	h, err := coord.NewMutex(c, "/locks/reindex", nil).Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Release()
	if _, err := coord.NewQueue[string](c, "/jobs/mail", nil).Put(ctx, "hello"); err != nil {
		fmt.Println(err)
		return
	}

	v, err := inspect.Tree(ctx, c, "/", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, in := range v.Reports {
		fmt.Printf("%s: %s: %s\n", in.Path, in.Recipe, in.Summary)
	}
	// Output:
	// /jobs/mail: queue: 1 item: 1 ready, 0 claimed, 0 delayed
	// /locks/reindex: mutex: held, no waiters
}
