package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// inspect shows the state of the path.
func (t *tool) inspect(ctx context.Context, c *coord.Client) error {
	in, err := inspect.Path(ctx, c, t.path, &inspect.Options{Data: t.data})
	if err != nil {
		return err
	}
	out := output{ctx, t.stdout}
	if !t.json {
		_, err = io.WriteString(out, in.String())
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(in)
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
	out := output{ctx, t.stdout}
	if t.json {
		return json.NewEncoder(out).Encode(f)
	}
	_, err = fmt.Fprintf(out, "ready %d\nclaimed %d\ndelayed %d\ndead %d\noldest %.3f\nwaiting %d\nbuckets %d\nunread %d\n",
		f.Ready, f.Claimed, f.Delayed, f.Dead, f.Oldest, f.Waiting, f.Buckets, f.Unread)
	return err
}

// change is one line of watch as JSON.
type change struct {
	At      time.Time `json:"at"`
	Event   string    `json:"event"` // "there", "created", "changed" or "deleted"
	Path    string    `json:"path"`
	Size    int       `json:"size"`
	Session string    `json:"session,omitempty"`
	Data    []byte    `json:"data,omitempty"`
}

// watch prints the changes at the path and below.
func (t *tool) watch(ctx context.Context, c *coord.Client) error {
	cache := coord.NewCache(c, t.path, nil)
	ctx, cancel := context.WithCancelCause(ctx)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		cancel(cache.Run(ctx))
	}()
	defer func() {
		cancel(nil)
		<-ran
	}()
	out := output{ctx, t.stdout}
	e := json.NewEncoder(out)
	first := true
	for batch, err := range cache.Events(ctx) {
		if err != nil {
			return err
		}
		for _, ev := range batch {
			ch := change{At: time.Now().UTC(), Event: ev.Kind.String(), Path: ev.Path, Size: len(ev.Node.Data)}
			if first {
				ch.Event = "there"
			}
			if owner := ev.Node.Stat.EphemeralOwner; owner != 0 {
				ch.Session = fmt.Sprintf("0x%x", uint64(owner))
			}
			if t.data {
				ch.Data = ev.Node.Data
			}
			if t.json {
				err = e.Encode(ch)
			} else {
				_, err = fmt.Fprintln(out, ch.String())
			}
			if err != nil {
				return err
			}
		}
		first = false
	}
	return context.Cause(ctx)
}

func (c *change) String() string {
	s := fmt.Sprintf("%s  %-7s  %s", c.At.Format(time.RFC3339), c.Event, c.Path)
	if c.Event != "deleted" {
		s += fmt.Sprintf("  %d bytes", c.Size)
	}
	if c.Session != "" {
		s += "  " + c.Session
	}
	if len(c.Data) > 0 {
		s += "  " + strconv.Quote(string(c.Data))
	}
	return s
}
