package fence

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// maxPath is the size of the column for paths in MySQL, in bytes. Without its strict mode MySQL cuts what is longer.
const maxPath = 1024

// A Token names a holder: the path of its lock, and the fencing token of its hold. Make it with [Of] in the process of the hold,
// and with [ParseToken] or a literal elsewhere. Number is 1 or more. For the token of a coord.Branch choose a path that names the site. Tokens of one path
// compare by Number.
type Token struct {
	Path   string // of the lock or the election, absolute, the namespace included
	Number int64  // coord.Hold.Token

	hold *coord.Hold // nil if the hold is in another process
}

// Of returns the token of a hold of a Mutex, of the writer of an RWMutex, of an Election or of a shard. While the hold is in this
// process, the token also ends with it: see [Fence.Tx] and [Fence.Check]. Every use of the token of another hold, or of nil, fails
// with coord.ErrInvalid.
func Of(h *coord.Hold) Token {
	if h == nil {
		return Token{}
	}
	t := Token{Number: h.Token(), hold: h}
	if dir, name := path.Split(h.Path()); layout.IsOurs(name) {
		t.Path = path.Clean(dir)
	}
	return t
}

// ParseToken is the inverse of String. The error matches coord.ErrInvalid, and coord.ErrBadPath too if the path is bad.
func ParseToken(s string) (Token, error) {
	escaped, number, _ := strings.Cut(s, " ")
	p, err := url.PathUnescape(escaped)
	if err != nil {
		return Token{}, tokenError("", fmt.Errorf("%w: %w", coord.ErrInvalid, err))
	}
	t := Token{Path: p}
	if t.Number, err = strconv.ParseInt(number, 10, 64); err != nil {
		return Token{}, tokenError("", fmt.Errorf("%w: want a path and a number, have %q", coord.ErrInvalid, s))
	}
	return t, t.check()
}

// String returns the path, escaped as in a URL, a space, and the number.
func (t Token) String() string {
	return (&url.URL{Path: t.Path}).EscapedPath() + " " + strconv.FormatInt(t.Number, 10)
}

// check reports whether t can be compared with other tokens of its path, and its hold has not ended.
func (t Token) check() error {
	switch {
	case t.Number <= 0:
		return tokenError(t.Path, fmt.Errorf("%w: no fencing token: there is no hold, or several clients can have it at a time", coord.ErrInvalid))
	case t.Path == "" && t.hold != nil:
		return tokenError(t.hold.Path(), fmt.Errorf("%w: not the hold of a lock: for an item of a queue use Once", coord.ErrInvalid))
	case len(t.Path) > maxPath:
		return tokenError(t.Path, fmt.Errorf("%w: the path has %d bytes, limit %d", coord.ErrInvalid, len(t.Path), maxPath))
	}
	if err := backend.CheckPath(t.Path); err != nil {
		return tokenError(t.Path, fmt.Errorf("%w: %w", coord.ErrInvalid, err))
	}
	if t.hold != nil {
		if err := t.hold.Err(); err != nil {
			return tokenError(t.Path, err)
		}
	}
	return nil
}

func tokenError(path string, err error) error {
	return &backend.Error{Op: "fencing token", Path: path, Err: err}
}

type tokenKey struct{}

// NewContext returns a context that carries the token to [Transport] and [FromContext].
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// FromContext returns the token that NewContext or [Handler] has put into the context, if there is one.
func FromContext(ctx context.Context) (t Token, ok bool) {
	t, ok = ctx.Value(tokenKey{}).(Token)
	return t, ok
}
