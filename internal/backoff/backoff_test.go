package backoff

import (
	"testing"
	"testing/synctest"
)

type steady struct{}

func (steady) Random(string) uint64 { return 0 }

// The first pause is none, so no channel ends it. A pause of half a second is over at once in fake time, unless a channel is ready.
func TestPauses_EachChannelEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := make(chan struct{})
		close(ready)
		for name, x := range map[string]struct {
			wait func(p *Pauses) bool
			over bool // the pause is made
		}{
			"none":           {func(p *Pauses) bool { return p.Wait(nil, nil) }, true},
			"first":          {func(p *Pauses) bool { return p.Wait(ready, nil) }, false},
			"second":         {func(p *Pauses) bool { return p.Wait(nil, ready) }, false},
			"none of three":  {func(p *Pauses) bool { return p.WaitOr(nil, nil, nil) }, true},
			"first of three": {func(p *Pauses) bool { return p.WaitOr(ready, nil, nil) }, false},
			"third":          {func(p *Pauses) bool { return p.WaitOr(nil, nil, ready) }, false},
		} {
			p := New(steady{})
			if !x.wait(&p) {
				t.Errorf("%s: a channel has ended the first pause", name)
			}
			p = p.From(100)
			if x.wait(&p) != x.over {
				t.Errorf("%s: the pause was made: %t", name, !x.over)
			}
		}
	})
}
