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

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/cmd/coordctl/internal/top"
	"github.com/go-coord/coord/internal/layout"
)

// TestADestroyedTransactionIsInDoubt: an outsider has deleted its record after two sites have voted
// yes. tx list, tx status and top show it.
func TestADestroyedTransactionIsInDoubt(t *testing.T) {
	var out, errs bytes.Buffer
	x, c := within(t, &out)
	x.stderr, x.path, x.doubt, x.json = &errs, "/tx", true, true
	s, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
	branch := "/" + layout.BranchName("order-1", "00000000-0000-8000-8000-000000000001")
	other := "/" + layout.BranchName("order-2", "00000000-0000-8000-8000-000000000002")
	_, err = s.Commit(t.Context(), node("/tx", ""), node("/tx/tx", ""), node("/tx/sites", ""), node("/tx/sites/bank", ""), node("/tx/sites/db", ""),
		node("/tx/sites/bank"+branch, layout.BranchYes), node("/tx/sites/db"+branch, layout.BranchYes), node("/tx/sites/db"+other, string(layout.EncodeNo("full"))))
	if err != nil {
		t.Fatal(err)
	}
	check := func(verb string, err error, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if err != nil || !strings.Contains(out.String(), text) {
				t.Errorf("%s: %v, want %q:\n%s%s", verb, err, text, out.String(), errs.String())
			}
		}
		out.Reset()
	}
	if err := x.listTx(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var list []transaction
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].ID != "order-1" || list[0].State != "in doubt" || !list[0].Destroyed || len(list[0].Votes) != 2 || list[0].InDoubt.IsZero() {
		t.Errorf("tx list: %s", out.String())
	}
	out.Reset()
	x.values = []string{"order-1"}
	check("tx status --json", x.txStatus(t.Context(), c), `"state": "in doubt"`, `"destroyed": true`, `"site": "bank"`, `"site": "db"`)
	x.json = false
	check("tx list", x.listTx(t.Context(), c), "order-1  in doubt (record destroyed)", "bank:yes(not served) db:yes(not served)")
	check("tx status", x.txStatus(t.Context(), c), "order-1: in doubt (record destroyed)", "proposer  unknown", "\nbank  yes", "\ndb    yes")
	x.values = []string{"order-2"} // no site is bound by it
	if err := x.txStatus(t.Context(), c); status(err) != exitNo {
		t.Errorf("tx status of another: %v", err)
	}
	for _, path := range []string{"/", "/tx/sites/db"} {
		err = top.Follow(t.Context(), c, path, nil, func(_ *live.Model, v *live.Snapshot) (bool, error) {
			if n := v.Totals().InDoubt; n != 1 {
				t.Errorf("top %s: %d paths with a transaction in doubt: %+v", path, n, v.Rows)
			}
			return false, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestADestroyedTransactionIsInDoubtAlsoIfItsIDIsUsedAgain: the site stays bound by the yes of the earlier one.
func TestADestroyedTransactionIsInDoubtAlsoIfItsIDIsUsedAgain(t *testing.T) {
	var out, errs bytes.Buffer
	x, c := within(t, &out)
	x.stderr, x.path = &errs, "/tx"
	s, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
	const before, now = "00000000-0000-8000-8000-000000000001", "00000000-0000-8000-8000-000000000002"
	_, err = s.Commit(t.Context(), node("/tx", ""), node("/tx/tx", ""), node("/tx/sites", ""), node("/tx/sites/bank", ""),
		node("/tx/sites/bank/"+layout.BranchName("order-1", before), layout.BranchYes))
	if err == nil {
		_, err = s.Commit(t.Context(), node("/tx/tx/order-1", `{"mark":"`+now+`","sites":["bank"],"deadline":4102444800000,"payload":"InAi"}`),
			node("/tx/tx/order-1/"+layout.OpenName(now), ""), node("/tx/sites/bank/"+layout.BranchName("order-1", now), ""))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := x.listTx(t.Context(), c); err != nil || !strings.Contains(out.String(), "order-1  open ") || !strings.Contains(out.String(), "order-1  in doubt (record destroyed)") {
		t.Errorf("tx list: %v\n%s", err, out.String())
	}
	out.Reset()
	x.values = []string{"order-1"}
	if err := x.txStatus(t.Context(), c); err != nil || !strings.HasPrefix(out.String(), "order-1: open") || !strings.Contains(errs.String(), "an earlier transaction, which is in doubt") {
		t.Errorf("tx status: %v\n%s%s", err, out.String(), errs.String())
	}
}

// TestTransactionsThatCannotBeReadAreNotPassedOver: what the user may not read is no empty list.
func TestTransactionsThatCannotBeReadAreNotPassedOver(t *testing.T) {
	for _, denied := range []string{"/tx/tx", "/tx/tx/order-1", "/tx/sites", "/tx/sites/bank"} {
		t.Run(denied, func(t *testing.T) {
			below := memory.New(nil)
			setup, err := coord.Open(t.Context(), below, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer setup.Close()
			s, err := setup.Session(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
			const mark = "00000000-0000-8000-8000-000000000001"
			_, err = s.Commit(t.Context(), node("/tx", ""), node("/tx/tx", ""), node("/tx/sites", ""), node("/tx/sites/bank", ""), node("/tx/sites/db", ""),
				node("/tx/tx/order-1", `{"mark":"`+mark+`","sites":["bank"],"deadline":4102444800000,"payload":"InAi"}`),
				node("/tx/tx/order-1/"+layout.OpenName(mark), ""), node("/tx/sites/bank/"+layout.BranchName("order-1", mark), ""))
			if err != nil {
				t.Fatal(err)
			}
			c, err := coord.Open(t.Context(), backendtest.Intercept(below, backendtest.Hooks{
				Before: func(_ context.Context, call backendtest.Call) error {
					if call.Path == denied && (call.Op == "get" || call.Op == "children" || call.Op == "read") {
						return backend.ErrDenied
					}
					return nil
				},
			}), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var errs bytes.Buffer
			x := &tool{stdout: io.Discard, stderr: &errs, path: "/tx", wait: -1, signals: make(chan os.Signal), doubt: true}
			if err := x.listTx(t.Context(), c); !errors.Is(err, errUnread) || status(err) != -1 || strings.Contains(errs.String(), "no transactions") || !strings.Contains(errs.String(), "note: no permission to read") {
				t.Errorf("tx list: %v\n%s", err, errs.String())
			}
			x.values = []string{"order-2"}
			if err := x.txStatus(t.Context(), c); !errors.Is(err, errUnread) {
				t.Errorf("tx status: %v", err)
			}
		})
	}
}
