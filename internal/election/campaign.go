package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
)

// Config is coord.ElectionOptions.
type Config struct {
	ID                string
	Data              []byte
	StepDownOnSuspend bool
}

// An Election is the engine of coord.Election. Each candidate has one ephemeral sequential node. The rules
// of the queue are those of line.Line. The leader announces itself in a node of its own, see
// layout.ReadyInfix.
type Election struct {
	c        *core.Client
	path     nodepath.Path
	own      layout.Candidate // of the candidates of this Election
	stepDown bool
}

// New returns the election at path. It does no I/O; a bad path or ID is reported by the first call.
func New(c *core.Client, path string, cfg Config) Election {
	return Election{
		c: c, path: c.Path(path), stepDown: cfg.StepDownOnSuspend,
		own: layout.Candidate{ID: cfg.ID, Data: slices.Clone(cfg.Data)},
	}
}

func (e *Election) line() *line.Line {
	return line.New(e.c, e.path.Full(), layout.LatchLine, kinds.RecipeDir{})
}

// Campaign waits until the candidate leads, or ctx ends.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	const op = "campaign"
	if err := e.path.Check(op); err != nil {
		return nil, err
	}
	if !utf8.ValidString(e.own.ID) {
		return nil, errs.Op(op, e.path.Full(), fmt.Errorf("%w: the ID is not valid UTF-8", backend.ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, errs.Op(op, e.path.Full(), err)
	}
	data, err := e.own.Encode()
	if err != nil {
		return nil, errs.Op(op, e.path.Full(), err)
	}
	led := &leading{l: e.line()}
	h, err := led.l.Campaign(ctx, op, data, led, e.stepDown)
	if err != nil {
		return nil, err
	}
	return &Term{h, led}, nil
}

// campaignOn is Campaign for a loop that campaigns until its ctx ends: it also waits while the service has
// no space.
func (e *Election) campaignOn(ctx context.Context) (*Term, error) {
	short := core.NewShortage(e.c, "campaign", e.path.Full())
	for {
		t, err := e.Campaign(ctx)
		if !short.Waited(ctx, err) {
			return t, err
		}
	}
}

// Run campaigns, calls f during the term, and resigns. If the term was lost before f returned, Run does this
// again with the next term.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context, t *Term) error) error {
	if f == nil {
		return errs.Op("run", e.path.Full(), errs.ErrNoFunction)
	}
	for {
		again := false
		var t *Term
		campaign := func(ctx context.Context) (h *core.Hold, err error) {
			if t, err = e.campaignOn(ctx); err != nil {
				return nil, err
			}
			return t.h, nil
		}
		err := core.Do(ctx, e.path.Full(), campaign, func(held context.Context, h *core.Hold) error {
			err := f(held, t)
			again = errors.Is(h.Err(), errs.ErrLost)
			if again && err != nil {
				e.c.Log().Info("coord: the function of Run returned an error after its term was lost, campaigning again", "path", h.Path(), "error", err)
			}
			return err
		})
		if !again {
			return err
		}
	}
}

// Terms returns an iterator that campaigns, yields each term that it gains, and releases it after the body.
func (e *Election) Terms(ctx context.Context) iter.Seq2[*Term, error] {
	core.NeedContext(ctx)
	return func(yield func(*Term, error) bool) {
		for ctx.Err() == nil {
			t, err := e.campaignOn(ctx)
			if err != nil {
				if ctx.Err() == nil || !errs.OfContext(err) {
					yield(nil, err)
				}
				return
			}
			goOn := false
			func() {
				defer func() { err = t.h.Release() }() // also if the body panics
				goOn = yield(t, nil)
			}()
			switch {
			case !goOn:
				return
			case err != nil && !errors.Is(err, errs.ErrLost):
				yield(nil, err)
				return
			}
		}
	}
}

// Revoke asks the leader to resign.
func (e *Election) Revoke(ctx context.Context, o *line.RevokeOptions) error {
	return e.line().Revoke(ctx, &e.path, o)
}
