package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-coord/coord/internal/usercode"
)

// Logger is a slog.Logger whose lines go through a Box. Each line keeps the time and the
// source position of its call.
type Logger struct {
	*slog.Logger
	box *Box[slog.Record] // nil for a silent Logger
}

// NewLogger returns a Logger in front of l; a nil l makes it silent. Every method of l's
// Handler, Enabled included, runs on the goroutine of the Box.
func NewLogger(l *slog.Logger) *Logger {
	if l == nil {
		return &Logger{Logger: slog.New(slog.DiscardHandler)}
	}
	h, ctx := l.Handler(), context.Background()
	write := func(r slog.Record) {
		if h.Enabled(ctx, r.Level) {
			h.Handle(ctx, r) // a line that cannot be written cannot be reported elsewhere
		}
	}
	box := New(write, func(n int) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "coord: the Logger is too slow, log lines were dropped", 0)
		r.Add("lines", n)
		write(r)
	}, func(f *usercode.Failure, n int) {
		r := slog.NewRecord(time.Now(), slog.LevelError, "coord: the handler of the Logger panicked or ended its goroutine, log lines are lost", 0)
		r.Add("lines", n, "type", f.Type, "stack", f.Stack)
		write(r)
	})
	return &Logger{Logger: slog.New(handler{box}), box: box}
}

// Silent reports whether l writes nothing.
func (l *Logger) Silent() bool { return l.box == nil }

// Drain is Box.Drain.
func (l *Logger) Drain(bound time.Duration) bool { return l.box == nil || l.box.Drain(bound) }

// handler hands records to a Box. The library adds no attributes and no groups to a Logger;
// they would be lost here, so these methods panic.
type handler struct{ box *Box[slog.Record] }

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.box.Put(r)
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { panic("outbox: a Logger with attributes") }
func (h handler) WithGroup(string) slog.Handler      { panic("outbox: a Logger with a group") }
