package txn_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/txn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// put returns a recipe's operation that creates the node at path or sets it, after a look.
// meanwhile runs after the look.
func put(path string, meanwhile func(looks int)) txn.Op {
	looks := 0
	return txn.Op{
		Name: "put", Path: path,
		Expand: func(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
			_, err := s.Backend().Exists(ctx, path, nil)
			looks++
			meanwhile(looks)
			if errs.IsNotFound(err) {
				return []backend.Op{backend.Check("/", backend.AnyVersion), backend.Create(path, nil, backend.Persistent)}, nil
			}
			return []backend.Op{backend.SetData(path, nil, backend.AnyVersion)}, err
		},
		Again: func(err error) bool { return errs.IsNotFound(err) || errors.Is(err, backend.ErrExists) },
	}
}

// conflict is the error of a refused transaction.
type conflict struct {
	op    string
	index int
	path  string
	error
}

func (e *conflict) Unwrap() error { return e.error }

func newConflict(op string, index int, path string, err error) error {
	return &conflict{op, index, path, err}
}

func TestTxn_ARecipesOperationThatIsOvertakenIsRetried(t *testing.T) {
	st := memory.New(nil)
	c, err := core.Open(t.Context(), st, core.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := st.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	commit := func(op backend.Op) {
		t.Helper()
		if _, err := other.Commit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(ops ...txn.Op) ([]txn.Result, error) {
		x := txn.New(c, newConflict)
		for _, op := range ops {
			x.Add(op)
		}
		return x.Commit(t.Context())
	}
	commit(backend.Create("/plain", nil, backend.Persistent))
	plain := cell.New(c, "/plain", layout.KindValue)
	op := put("/x", func(looks int) {
		switch looks {
		case 1:
			commit(backend.Create("/x", nil, backend.Persistent))
		case 2:
			commit(backend.Delete("/x", backend.AnyVersion))
		}
	})
	res, err := apply(plain.PlainSetOp(nil), op, plain.DeleteOp())
	if err != nil || len(res) != 3 || res[1].Path != "/x" || res[1].Version != 0 || res[0].Version != 1 || res[2].Version != -1 {
		t.Errorf("%+v, %v", res, err)
	}

	// A conflict of another part is not retried, and names that part.
	looks := 0
	_, err = apply(put("/x", func(int) { looks++ }), plain.DeleteOp())
	var refused *conflict
	if !errors.As(err, &refused) || refused.op != "delete" || refused.index != 1 || refused.path != "/plain" || looks != 1 {
		t.Errorf("%v after %d looks", err, looks)
	}

	// Without Again, the operation has a conflict of its own.
	op = put("/y", func(int) { commit(backend.Create("/y", nil, backend.Persistent)) })
	op.Again = nil
	_, err = apply(op)
	if !errors.As(err, &refused) || refused.op != "put" || refused.path != "/y" || !errors.Is(err, backend.ErrExists) {
		t.Errorf("%v", err)
	}

	// An error of Expand is not retried either.
	failed := errors.New("failed")
	_, err = apply(txn.Op{Name: "put", Path: "/z", Expand: func(context.Context, *core.Session, []backend.Op) ([]backend.Op, error) { return nil, failed }})
	var e *backend.Error
	if !errors.Is(err, failed) || !errors.As(err, &e) || e.Op != "put" || e.Path != "/z" {
		t.Errorf("%v", err)
	}
}
