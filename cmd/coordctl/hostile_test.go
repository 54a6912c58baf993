package main

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// TestNoTextOfOtherClientsConfusesATerminal: an operator reads what other clients have written. Whatever
// it is, it neither ends a line nor reaches the terminal as a command.
func TestNoTextOfOtherClientsConfusesATerminal(t *testing.T) {
	const evil = "\x1b[2Jall is well\r\n\tok\u202e\u0085"
	ctx := t.Context()
	var out, errs bytes.Buffer
	x, c := within(t, &out)
	x.stderr, x.yes, x.limit = &errs, true, 10
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Session(ctx)
	must(err)
	commit := func(ops ...backend.Op) {
		t.Helper()
		_, err := s.Commit(ctx, ops...)
		must(err)
	}
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }

	// A lock, whose holder is asked for it, and a value.
	h, err := coord.NewMutex(c, "/lock", &coord.MutexOptions{ID: evil}).Lock(ctx)
	must(err)
	defer h.Release()
	_, err = coord.NewValue(c, "/value", &coord.ValueOptions[string]{Codec: coord.Text()}).Set(ctx, evil)
	must(err)

	// A shard, whose owner has an ID that the library refuses.
	granted := make(chan struct{})
	over, cancel := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() {
		ran <- coord.NewShards(c, "/shards", 1, nil).Run(over, func(ctx context.Context, _ *coord.Shard) error {
			close(granted)
			<-ctx.Done()
			return nil
		})
	}()
	defer func() { cancel(); <-ran }()
	<-granted
	names, _, err := s.Children(ctx, "/shards/shards/0", nil)
	must(err)
	owner, err := layout.EncodeContender(evil, 0, nil)
	must(err)
	commit(backend.SetData("/shards/shards/0/"+names[0], owner, backend.AnyVersion))

	// A dead letter.
	q := coord.NewQueue(c, "/queue", &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1})
	_, err = q.Put(ctx, evil)
	must(err)
	item, err := q.Take(ctx)
	must(err)
	must(item.NackCause(0, errors.New(evil)))
	buckets, _, err := s.Children(ctx, "/queue/dead/items", nil)
	must(err)
	for _, bucket := range buckets {
		dir := "/queue/dead/items/" + bucket
		names, _, err := s.Children(ctx, dir, nil)
		must(err)
		for _, name := range names {
			if strings.HasPrefix(name, layout.ReasonPrefix) {
				commit(backend.SetData(dir+"/"+name, []byte(`{"reason":`+jsonText(evil)+`,"queue":"/queue","session":`+jsonText(evil)+`}`), backend.AnyVersion))
			}
		}
	}

	// An item that waits for another attempt.
	tried := coord.NewQueue[int](c, "/retries", nil)
	_, err = tried.Put(ctx, 1)
	must(err)
	again, err := tried.Take(ctx)
	must(err)
	must(again.NackCause(time.Hour, errors.New(evil)))

	// A decision that is owed to a dead proposer.
	const mark = "00000000-0000-8000-8000-000000000001"
	commit(node("/tx", ""), node("/tx/sites", ""), node("/tx/sites/db", ""), node("/tx/tx", ""),
		node("/tx/tx/t1", `{"mark":"`+mark+`","sites":["db"],"deadline":4102444800000,"payload":"InAi"}`),
		node("/tx/tx/t1/"+layout.OpenName(mark), ""), node("/tx/sites/db/"+layout.BranchName("t1", mark), ""))
	record, err := s.Exists(ctx, "/tx/tx/t1", nil)
	must(err)
	commit(node("/tx/tx/t1/"+layout.DecisionName(record.Czxid), `{"commit":false,"by":`+jsonText(evil)+`,"reason":`+jsonText(evil)+`}`))

	lines := func(text string) error { _, err := out.WriteString(text + "\n"); return err }
	for _, v := range []struct {
		name, path string
		data       bool
		values     []string
		do         func(context.Context, *coord.Client) error
	}{
		{"inspect", "/lock", true, nil, x.inspect},
		{"revoke", "/lock", false, nil, func(ctx context.Context, c *coord.Client) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			return x.revoke(ended, c)
		}},
		{"shards", "/shards", false, nil, x.shards},
		{"tree", "/", false, nil, x.tree},
		{"queue dead", "/queue", true, nil, x.dead},
		{"queue retries", "/retries", false, nil, x.retries},
		{"tx list", "/tx", false, nil, x.listTx},
		{"tx status", "/tx", false, []string{"t1"}, x.txStatus},
		{"tx recover", "/tx", false, nil, x.recoverTx},
		{"watch", "/", true, nil, func(context.Context, *coord.Client) error {
			return lines((&change{Event: "created", Path: "/a" + evil, Data: []byte(evil)}).String())
		}},
		{"group watch", "/", false, nil, func(context.Context, *coord.Client) error {
			return lines((&member{Unread: evil}).value())
		}},
		{"an error", "/", false, nil, func(context.Context, *coord.Client) error { return errors.New("no: " + evil[:14]) }},
	} {
		x.path, x.data, x.values = v.path, v.data, v.values
		if err := v.do(ctx, c); err != nil {
			x.say("%v", err)
		}
		if out.Len()+errs.Len() == 0 {
			t.Errorf("%s prints nothing", v.name)
		}
		for _, text := range []string{out.String(), errs.String()} {
			bad := func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }
			if strings.ContainsFunc(text, bad) || !utf8.ValidString(text) || strings.Contains(text, "\n\tok") || strings.Contains(text, "\nok") {
				t.Errorf("%s prints %q", v.name, text)
			}
		}
		out.Reset()
		errs.Reset()
	}
}

func jsonText(s string) string {
	return `"` + strings.NewReplacer("\x1b", `\u001b`, "\r", `\r`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}
