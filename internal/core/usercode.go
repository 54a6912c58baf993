package core

import "github.com/go-coord/coord/internal/usercode"

// Call calls a function of the program on a goroutine of its own, and returns its error. If the
// function panics or ends that goroutine, Call logs that and returns an error. So the failure ends
// neither the program nor other work of the client. what is the name of the function for the log, and
// attrs name the path, item or shard for which it was called.
func (c *Client) Call(what string, attrs []any, f func() error) error {
	err := usercode.Call(f)
	c.LogFailure(what, attrs, err)
	return err
}

// LogFailure logs that a function of the program panicked or ended its goroutine, if err is such a
// failure. It does not log the value of a panic, which can contain data.
func (c *Client) LogFailure(what string, attrs []any, err error) {
	if f := usercode.As(err); f != nil {
		c.log.Error("coord: a function of the program panicked or ended its goroutine",
			append([]any{"function", what, "error", f.Error(), "type", f.Type, "stack", f.Stack}, attrs...)...)
	}
}
