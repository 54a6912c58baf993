package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-coord/coord"
)

// A setting is a recipe of one node.
type setting struct {
	name string
	set  func(c *coord.Client, path string) error
	// isSet reports whether what set has set is there; an error is one that no caller expects.
	isSet func(c *coord.Client, path string) (bool, error)
	unset func(c *coord.Client, path string) error // nil: the recipe has no such call
}

// barrierIsSet reports whether a call of Wait blocks: for a while, in which a real server has also answered the
// client many times.
func barrierIsSet(c *coord.Client, path string) (bool, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	blocks := errors.New("it blocks")
	w := coord.NewBarrier(c, path, nil)
	timer := time.AfterFunc(300*time.Millisecond, func() {
		if s, err := c.Session(ctx); err == nil {
			for range 30 {
				s.Exists(ctx, "/", nil)
			}
		}
		cancel(blocks)
	})
	defer timer.Stop()
	err := w.Wait(ctx)
	if errors.Is(err, blocks) {
		return true, nil
	}
	return false, err
}

func settingKinds() []setting {
	text := &coord.ValueOptions[string]{Codec: coord.Text()}
	value := func(name, data string) setting {
		return setting{
			name,
			func(c *coord.Client, path string) error {
				_, err := coord.NewValue(c, path, text).Set(context.Background(), data)
				return err
			},
			func(c *coord.Client, path string) (bool, error) {
				got, err := coord.NewValue(c, path, text).Get(context.Background())
				if errors.Is(err, coord.ErrNotFound) {
					return false, nil
				}
				if err == nil && got.Value != data {
					err = fmt.Errorf("it is %q", got.Value)
				}
				return err == nil, err
			},
			func(c *coord.Client, path string) error {
				v := coord.NewValue(c, path, text)
				got, err := v.Get(context.Background())
				if errors.Is(err, coord.ErrNotFound) {
					return nil
				}
				if err != nil {
					return err
				}
				return v.Delete(context.Background(), got)
			},
		}
	}
	with := func(s setting, name string, set func(c *coord.Client, path string) error) setting {
		s.name, s.set = name, set
		return s
	}
	v := value("value", "precious")
	return []setting{
		v,
		value("value of no bytes", ""),
		with(v, "value by CompareAndSet", func(c *coord.Client, path string) error {
			_, err := coord.NewValue(c, path, text).CompareAndSet(context.Background(), coord.Versioned[string]{}, "precious")
			return err
		}),
		with(v, "value by Update", func(c *coord.Client, path string) error {
			_, err := coord.NewValue(c, path, text).Update(context.Background(), func(old string) (string, error) {
				if old != "" {
					return "", fmt.Errorf("old value %q", old)
				}
				return "precious", nil
			})
			return err
		}),
		with(v, "value in a transaction", func(c *coord.Client, path string) error {
			done, err := coord.NewTxn(c).Add(coord.NewValue(c, path, text).SetOp("precious")).Commit(context.Background())
			if err == nil && !strings.HasSuffix(done[0].Path, path) {
				err = fmt.Errorf("the result is that of %s", done[0].Path)
			}
			if got, gerr := coord.NewValue(c, path, text).Get(context.Background()); err == nil && (gerr != nil || got.Version != done[0].Version || got.Mzxid != done[0].Zxid) {
				err = fmt.Errorf("the result is %+v, stored is %+v (%v)", done[0], got, gerr)
			}
			return err
		}),
		{
			"counter",
			func(c *coord.Client, path string) error {
				_, err := coord.NewCounter(c, path).Add(context.Background(), 7)
				return err
			},
			func(c *coord.Client, path string) (bool, error) {
				n, err := coord.NewCounter(c, path).Get(context.Background())
				if err == nil && n != 0 && n != 7 {
					err = fmt.Errorf("it is %d", n)
				}
				return n == 7, err
			},
			nil,
		},
		{
			"barrier",
			func(c *coord.Client, path string) error {
				return coord.NewBarrier(c, path, nil).Set(context.Background())
			},
			barrierIsSet,
			func(c *coord.Client, path string) error {
				return coord.NewBarrier(c, path, nil).Remove(context.Background())
			},
		},
	}
}
