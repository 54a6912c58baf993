package coord

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// put returns a recipe's operation that creates the node at path or sets it, after a look.
// meanwhile runs after the look.
func put(path string, meanwhile func(looks int)) TxnOp {
	looks := 0
	return TxnOp{
		op: "put", path: path,
		expand: func(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
			_, err := s.Backend().Exists(ctx, path, nil)
			looks++
			meanwhile(looks)
			if errs.IsNotFound(err) {
				return []backend.Op{backend.Check("/", backend.AnyVersion), backend.Create(path, nil, backend.Persistent)}, nil
			}
			return []backend.Op{backend.SetData(path, nil, backend.AnyVersion)}, err
		},
		again: func(err error) bool { return errs.IsNotFound(err) || errors.Is(err, backend.ErrExists) },
	}
}

func TestARecipesOperationThatIsOvertakenIsRetried(t *testing.T) {
	st := memory.New(nil)
	c, err := Open(t.Context(), st, nil)
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
	commit(backend.Create("/plain", nil, backend.Persistent))
	op := put("/x", func(looks int) {
		switch looks {
		case 1:
			commit(backend.Create("/x", nil, backend.Persistent))
		case 2:
			commit(backend.Delete("/x", backend.AnyVersion))
		}
	})
	res, err := NewTxn(c).Set("/plain", nil).Add(op).Delete("/plain").Commit(t.Context())
	if err != nil || len(res) != 3 || res[1].Path != "/x" || res[1].Version != 0 || res[0].Version != 1 || res[2].Version != -1 {
		t.Errorf("%+v, %v", res, err)
	}

	// A conflict of another part is not retried, and names that part.
	looks := 0
	_, err = NewTxn(c).Add(put("/x", func(int) { looks++ })).Delete("/plain").Commit(t.Context())
	var conflict *ConflictError
	if !errors.As(err, &conflict) || conflict.Op != "delete" || conflict.Index != 1 || looks != 1 {
		t.Errorf("%v after %d looks", err, looks)
	}

	// Without again, the operation has a conflict of its own.
	op = put("/y", func(int) { commit(backend.Create("/y", nil, backend.Persistent)) })
	op.again = nil
	_, err = NewTxn(c).Add(op).Commit(t.Context())
	if !errors.As(err, &conflict) || conflict.Op != "put" || conflict.Path != "/y" || !errors.Is(err, ErrExists) {
		t.Errorf("%v", err)
	}

	// An error of expand is not retried either.
	failed := errors.New("failed")
	_, err = NewTxn(c).Add(TxnOp{op: "put", path: "/z", expand: func(context.Context, *core.Session, []backend.Op) ([]backend.Op, error) { return nil, failed }}).Commit(t.Context())
	var e *backend.Error
	if !errors.Is(err, failed) || !errors.As(err, &e) || e.Op != "put" || e.Path != "/z" {
		t.Errorf("%v", err)
	}
}
