package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// queueCommand returns the verb queue and those below it.
func (t *tool) queueCommand() *cobra.Command {
	put := t.command(verb{
		name: "put", words: "PATH [VALUE…]", short: "put values into a queue, and print their ids",
		long:    `Without a VALUE, standard input is one value.`,
		example: `coordctl queue put /queues/mail '{"to":"a@example.com"}'`,
		exits:   []int{exitLate},
		do:      t.put,
	})
	take := t.command(verb{
		name: "take", words: "PATH", short: "take one item, write it to standard output, and acknowledge it",
		long: `
The item is acknowledged when it is written. If the write fails, another consumer gets it.`,
		example: `coordctl queue take /queues/mail --wait 0`,
		exits:   []int{exitLate},
		do:      t.take,
	})
	length := t.command(verb{
		name: "len", words: "PATH", short: "count the items",
		example: `coordctl queue len /queues/mail`,
		do:      t.count,
	})
	return t.command(verb{
		name: "queue", words: "PATH", short: "use and repair a queue",
		below: []*cobra.Command{put, take, length},
		do:    t.figures,
	})
}

func (t *tool) queue(c *coord.Client) *coord.Queue[[]byte] {
	return coord.NewQueue(c, t.path, &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
}

// put puts the values, or standard input as one value.
func (t *tool) put(ctx context.Context, c *coord.Client) error {
	var values [][]byte
	for _, v := range t.values {
		values = append(values, []byte(v))
	}
	if len(values) == 0 {
		data, err := readAll(ctx, io.LimitReader(t.stdin, 1<<21)) // more than a node can hold
		if err != nil {
			return err
		}
		values = append(values, data)
	}
	ids, err := t.queue(c).PutAll(ctx, values...)
	for _, id := range ids {
		fmt.Fprintln(output{ctx, t.stdout}, id)
	}
	return err
}

// take takes one item. It acknowledges the item only after writing it: if the write fails,
// another consumer gets the item.
func (t *tool) take(ctx context.Context, c *coord.Client) error {
	q := t.queue(c)
	take := q.Take
	if t.wait == 0 {
		take = q.TryTake
	}
	item, err := take(ctx)
	if err != nil {
		return err
	}
	defer item.Release()
	if _, err := (output{ctx, t.stdout}).Write(item.Value); err != nil {
		return err
	}
	return item.Ack()
}

// count prints the number of items.
func (t *tool) count(ctx context.Context, c *coord.Client) error {
	n, err := t.queue(c).Len(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(output{ctx, t.stdout}, n)
	return err
}

// figures is coord.QueueStats as JSON and as text.
type figures struct {
	Ready   int     `json:"ready"`
	Claimed int     `json:"claimed"`
	Delayed int     `json:"delayed"`
	Dead    int     `json:"dead"`
	Oldest  float64 `json:"oldest_seconds"`
	Waiting int     `json:"waiting"`
	Buckets int     `json:"buckets"`
	Unread  int     `json:"unread"`
}

// figures prints the figures of the queue.
func (t *tool) figures(ctx context.Context, c *coord.Client) error {
	st, err := t.queue(c).Stats(ctx)
	if err != nil {
		return err
	}
	f := figures{st.Ready, st.Claimed, st.Delayed, st.Dead, st.Oldest.Seconds(), st.Waiting, st.Buckets, st.Unread}
	switch {
	case f.Buckets == 0:
		t.say("nothing was ever put into a queue at %s", t.path)
	case f.Unread > 0:
		t.say("%d nodes with items were not read, so the figures are lower bounds", f.Unread)
	}
	return t.print(ctx, f, fmt.Sprintf("ready %d\nclaimed %d\ndelayed %d\ndead %d\noldest %.3f\nwaiting %d\nbuckets %d\nunread %d\n",
		f.Ready, f.Claimed, f.Delayed, f.Dead, f.Oldest, f.Waiting, f.Buckets, f.Unread))
}
