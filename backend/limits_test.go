package backend_test

import (
	"errors"
	"testing"

	"github.com/go-coord/coord/backend"
)

func TestLimitsNameTheFirstOperationThatDoesNotFit(t *testing.T) {
	check, absent := backend.Check("/a", 0), backend.Absent("/a/b")
	set := backend.SetData("/a", make([]byte, 70), 0) // 200 bytes with its path and overhead
	for name, test := range map[string]struct {
		limits backend.Limits
		ops    []backend.Op
		err    error
		index  int
	}{
		"no limits":          {backend.Limits{}, []backend.Op{set, set, check, check}, nil, 0},
		"as many operations": {backend.Limits{Ops: 2}, []backend.Op{set, check}, nil, 0},
		"one operation more": {backend.Limits{Ops: 2}, []backend.Op{set, check, set}, backend.ErrTooLarge, 2},
		"as many checks":     {backend.Limits{Checks: 1}, []backend.Op{set, check, set}, nil, 0},
		"one check more":     {backend.Limits{Checks: 2}, []backend.Op{check, set, absent, check}, backend.ErrTooLarge, 3},
		"as many bytes":      {backend.Limits{Bytes: 400}, []backend.Op{set, set}, nil, 0},
		"a byte more":        {backend.Limits{Bytes: 399}, []backend.Op{set, set}, backend.ErrTooLarge, 1},
		"an invalid one":     {backend.Limits{Ops: 1}, []backend.Op{set, {Path: "/a"}}, backend.ErrInvalid, 1},
		"none":               {backend.Limits{Ops: 1}, nil, backend.ErrInvalid, -1},
	} {
		err := test.limits.Refuse(test.ops)
		var e *backend.Error
		if !errors.Is(err, test.err) || test.err != nil && (!errors.As(err, &e) || e.Index != test.index) {
			t.Errorf("%s: %v, want %v at %d", name, err, test.err, test.index)
		}
	}
}
