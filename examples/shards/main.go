// Shards divides twelve pieces of work among workers that come and go. One of them is killed; the
// others take over its pieces, and give them back when it returns.
//
//	go run ./examples/shards
//	go run ./examples/shards -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/shards -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("shards", story) }

const pieces = 12

// work is a worker: it works on the shards that it owns, until ctx ends. Whatever it stores for a
// shard, it stores under the guard or the token of the shard.
func work(ctx context.Context, c *coord.Client, name string, b *board) error {
	return coord.NewShards(c, "/pieces", pieces, &coord.ShardsOptions{ID: name}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
		b.begins(name, sh)
		<-ctx.Done() // the work, in steps, until the shard is to move
		b.ends(name, sh)
		return nil
	})
}

// board has the owner of each piece.
type board struct {
	mu      sync.Mutex
	owner   map[int]string
	changed chan struct{}
}

func newBoard() *board { return &board{owner: make(map[int]string), changed: make(chan struct{})} }

func (b *board) begins(name string, sh *coord.Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owner[sh.Index] = name
	b.tell()
}

func (b *board) ends(name string, sh *coord.Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner[sh.Index] == name {
		delete(b.owner, sh.Index)
		b.tell()
	}
}

func (b *board) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until the workers own all pieces, each as many as the others, and returns the owners.
func (b *board) await(ctx context.Context, workers ...string) (map[int]string, error) {
	for {
		b.mu.Lock()
		owner, changed := maps.Clone(b.owner), b.changed
		b.mu.Unlock()
		even := len(owner) == pieces
		for _, name := range workers {
			even = even && len(piecesOf(owner, name)) == pieces/len(workers)
		}
		if even {
			return owner, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the workers %s do not own %d pieces each: %w", strings.Join(workers, " and "), pieces/len(workers), context.Cause(ctx))
		}
	}
}

func piecesOf(owner map[int]string, name string) (list []int) {
	for _, i := range slices.Sorted(maps.Keys(owner)) {
		if owner[i] == name {
			list = append(list, i)
		}
	}
	return list
}
