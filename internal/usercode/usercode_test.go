package usercode

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestCall_AFunctionThatDoesNotReturnIsAFailure(t *testing.T) {
	refused := errors.New("refused")
	var none []int
	for name, c := range map[string]struct {
		f    func() error
		kind string // of the panic
		want error
	}{
		"nil":           {f: func() error { return nil }},
		"error":         {f: func() error { return refused }, want: refused},
		"panic":         {f: func() error { panic("a secret") }, kind: "string"},
		"panic(nil)":    {f: func() error { panic(nil) }, kind: "*runtime.PanicNilError"},
		"runtime error": {f: func() error { none[1]++; return nil }, kind: "runtime.boundsError"},
		"Goexit":        {f: func() error { runtime.Goexit(); return nil }, kind: "Goexit"},
		"recovered":     {f: func() error { func() { defer func() { recover() }(); panic(1) }(); return nil }},
		"panic then Goexit": {f: func() error {
			defer runtime.Goexit()
			panic(1)
		}, kind: "Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Call(c.f)
			f := As(err)
			if c.kind == "" {
				if !errors.Is(err, c.want) || f != nil {
					t.Errorf("%v, want %v", err, c.want)
				}
				return
			}
			if f == nil || !strings.Contains(err.Error(), c.kind) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("%v, want a failure of kind %q", err, c.kind)
			}
			if !strings.Contains(f.Stack, "usercode_test.go:") {
				t.Errorf("the stack does not show the function:\n%s", f.Stack)
			}
		})
	}
}
