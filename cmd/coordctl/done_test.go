//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/layout"
)

// TestWhatWasDoneBeforeTheEndIsPrinted: a signal or --wait ends the verb half-way. What it has done until
// then is printed before it returns, in the form that was asked for.
func TestWhatWasDoneBeforeTheEndIsPrinted(t *testing.T) {
	const first, second = "00000000-0000-8000-8000-000000000001", "00000000-0000-8000-8000-000000000002"
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
	record := func(id, mark string) []backend.Op {
		return []backend.Op{
			node("/q/tx/"+id, `{"mark":"`+mark+`","sites":["db"],"deadline":4102444800000,"payload":"InAi"}`),
			node("/q/tx/"+id+"/"+layout.OpenName(mark), ""), node("/q/sites/db/"+layout.BranchName(id, mark), ""),
		}
	}
	for _, tc := range []struct {
		name  string
		setup [][]backend.Op
		ends  func(op backend.Op) bool // the commit with this operation is the last
		do    func(x *tool, ctx context.Context, c *coord.Client) error
		check func(t *testing.T, out []byte)
	}{
		{
			"queue put", nil,
			func(op backend.Op) bool { return bytes.Contains(op.Data, []byte("the first")) },
			func(x *tool, ctx context.Context, c *coord.Client) error {
				x.values, x.delay, x.putFlags = []string{"the first", "the second"}, time.Second, pflag.NewFlagSet("", pflag.ContinueOnError)
				x.putFlags.Int64("priority", 0, "")
				x.putFlags.Duration("delay", 0, "")
				if err := x.putFlags.Set("delay", "1s"); err != nil {
					return err
				}
				return x.put(ctx, c)
			},
			func(t *testing.T, out []byte) {
				var got struct{ IDs []string }
				if err := json.Unmarshal(out, &got); err != nil || len(got.IDs) != 1 {
					t.Errorf("%v: %q", err, out)
				}
			},
		},
		{
			"tx recover", [][]backend.Op{
				{node("/q", ""), node("/q/sites", ""), node("/q/sites/db", ""), node("/q/tx", "")},
				record("t1", first),
				append(record("t2", second), backend.Create("/q/tx/t2/"+layout.LiveName(second), nil, backend.Ephemeral)),
			},
			func(op backend.Op) bool {
				return op.Kind == backend.OpDelete && strings.HasSuffix(op.Path, "/"+layout.OpenName(first))
			},
			func(x *tool, ctx context.Context, c *coord.Client) error { return x.recoverTx(ctx, c) },
			func(t *testing.T, out []byte) {
				var got []decision
				if err := json.Unmarshal(out, &got); err != nil || len(got) != 1 || got[0].ID != "t1" || got[0].Commit {
					t.Errorf("%v: %q", err, out)
				}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			ended := errors.New("the end")
			c, err := coord.Open(t.Context(), backendtest.Intercept(memory.New(nil), backendtest.Hooks{
				After: func(_ context.Context, call backendtest.Call, err error) error {
					for _, op := range call.Ops {
						if err == nil && tc.ends(op) {
							end(ended)
						}
					}
					return err
				},
			}), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := c.Session(t.Context())
			for _, ops := range tc.setup {
				if err == nil {
					_, err = s.Commit(t.Context(), ops...)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			x := &tool{stdout: &out, stderr: io.Discard, path: "/q", wait: -1, json: true, yes: true, signals: make(chan os.Signal)}
			if err := tc.do(x, ctx, c); !errors.Is(err, ended) {
				t.Errorf("it ended with %v", err)
			}
			tc.check(t, out.Bytes())
		})
	}
}
