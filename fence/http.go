package fence

import (
	"fmt"
	"net/http"
)

// Header is the field of an HTTP request that carries a token, in the form of Token.String.
const Header = "Fencing-Token"

// A Transport sends the token in the context of a request, see [NewContext], with the request. Without one it changes nothing.
// It refuses a request whose hold has ended, and a bad token with coord.ErrInvalid. Base sends the requests; nil means http.DefaultTransport.
type Transport struct{ Base http.RoundTripper }

// RoundTrip sends a request.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	token, ok := FromContext(r.Context())
	if !ok {
		return base.RoundTrip(r)
	}
	if err := token.check(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Header.Set(Header, token.String())
	return base.RoundTrip(r)
}

// Handler requires that each request carries the token of a lock, and puts it into the request's context. lock returns the path of
// the lock that protects what the request writes. A request without a token is answered with 428 (Precondition Required), one with a
// token of another lock or with a bad one with 400.
//
// Handler does not compare the token with those of earlier requests: next has to, in the transaction in which it writes, with
// [Fence.Tx] or [Fence.Check] and the token of [FromContext]. A comparison before that would be too early: the request can be delayed
// after it. Let next write 412 (Precondition Failed) for coord.ErrFenced; the client then gives up.
func Handler(lock func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fields := r.Header.Values(Header)
		if len(fields) == 0 {
			http.Error(w, "the field "+Header+" is missing", http.StatusPreconditionRequired)
			return
		}
		t, err := ParseToken(fields[0])
		if want := lock(r); err == nil && (len(fields) > 1 || t.Path != want) {
			err = fmt.Errorf("want one token of %s", want)
		}
		if err != nil {
			http.Error(w, Header+": "+err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), t)))
	})
}
