package ingestapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/ingestapi/ingestpb"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// Limits of the API.
const (
	// MaxBody is the size of a request, in bytes.
	MaxBody = 2 * ingest.MaxBatchBytes
	// maxBodies bounds the requests that are read at once, in bytes; others wait.
	maxBodies = 8 * MaxBody
	// bodyTimeout is how long a writer may take to send a request.
	bodyTimeout = 30 * time.Second
)

// Writer takes batches. An ingest.Source is one.
type Writer interface {
	Write(ctx context.Context, b *ingest.Batch) (ingest.Result, error)
	// Refused counts a batch that did not come to be written.
	Refused(code ingest.Code)
}

// Guard says who writes and what they may write. An auth.Guard is one.
type Guard interface {
	Request(r *http.Request) (identity string, err error)
	Peer(ctx context.Context) (identity string, err error)
	PermitWrite(identity string, table engine.TableName) error
}

// API serves a Writer.
type API struct {
	w      Writer
	g      Guard // nil: everyone may write
	bodies *semaphore.Weighted
	grpc   *grpc.Server
}

// New returns an API. Without a guard everyone may write.
func New(w Writer, g Guard) *API {
	a := &API{w: w, g: g, bodies: semaphore.NewWeighted(maxBodies)}
	a.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(MaxBody))
	ingestpb.RegisterIngestServer(a.grpc, service{a: a})
	return a
}

// Over returns a handler that serves gRPC where it is asked for it, over HTTP/2,
// and all else by next.
func (a *API) Over(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			a.grpc.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Close ends the gRPC service and waits for it.
func (a *API) Close() { a.grpc.Stop() }

// permit says why a writer may not write a batch.
func (a *API) permit(identity string, b *ingest.Batch) *ingest.Error {
	if a.g == nil {
		return nil
	}
	b.Writer = identity
	var seen []engine.TableName
	for i := range b.Ops {
		if t := b.Ops[i].Table; !slices.Contains(seen, t) {
			if err := a.g.PermitWrite(identity, t); err != nil {
				a.w.Refused(ingest.Denied)
				return &ingest.Error{Code: ingest.Denied, Op: i, Err: err}
			}
			seen = append(seen, t)
		}
	}
	return nil
}

// ServeHTTP answers POST /v1/write.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	identity := ""
	if a.g != nil {
		var err error
		if identity, err = a.g.Request(r); err != nil {
			a.w.Refused(ingest.Denied)
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer(w, http.StatusUnauthorized, faultDoc{Error: err.Error(), Code: string(ingest.Denied)})
			return
		}
	}
	res, err := a.handle(w, r, identity)
	if err != nil {
		if err.Code == ingest.Busy || err.Code == ingest.Unavailable || err.Code == ingest.Unknown {
			w.Header().Set("Retry-After", "1")
		}
		d := faultDoc{Error: err.Error(), Code: string(err.Code)}
		if err.Op >= 0 {
			d.Operation = &err.Op
		}
		answer(w, httpStatus(err.Code), d)
		return
	}
	answer(w, http.StatusOK, resultDoc{
		res.Log.Origin, res.Log.Epoch.String(), string(res.Position), res.Time.Wall().Format(timeForm), res.Rows, res.Repeated,
	})
}

func (a *API) handle(w http.ResponseWriter, r *http.Request, identity string) (ingest.Result, *ingest.Error) {
	refuse := func(code ingest.Code, format string, args ...any) (ingest.Result, *ingest.Error) {
		a.w.Refused(code)
		return ingest.Result{}, &ingest.Error{Code: code, Op: -1, Err: fmt.Errorf(format, args...)}
	}
	if t := r.Header.Get("Content-Type"); t != "" {
		if media, _, err := mime.ParseMediaType(t); err != nil || media != "application/json" {
			return refuse(ingest.Invalid, "the request is of type %s, and a batch is application/json", t)
		}
	}
	size := r.ContentLength
	if size < 0 || size > MaxBody {
		size = MaxBody
	}
	if err := a.bodies.Acquire(r.Context(), size); err != nil {
		return refuse(ingest.Unavailable, "nothing was written: the writer has gone")
	}
	defer a.bodies.Release(size)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // not where there is no connection, as in a test
	b, err := Decode(http.MaxBytesReader(w, r.Body, MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refuse(ingest.TooLarge, "the request is larger than %d bytes: send it in parts", MaxBody)
	case err != nil:
		return refuse(ingest.Invalid, "%w", err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if h := r.Header.Get("Idempotency-Key"); h != "" {
		if b.Key != "" && b.Key != h {
			return refuse(ingest.Invalid, "the idempotency key is %q in the header and %q in the batch: give one of them", h, b.Key)
		}
		b.Key = h
	}
	if err := a.permit(identity, b); err != nil {
		return ingest.Result{}, err
	}
	return a.write(r.Context(), b)
}

func (a *API) write(ctx context.Context, b *ingest.Batch) (ingest.Result, *ingest.Error) {
	res, err := a.w.Write(ctx, b)
	var e *ingest.Error
	if err != nil && !errors.As(err, &e) {
		e = &ingest.Error{Code: ingest.Unknown, Op: -1, Err: err}
	}
	return res, e
}

func httpStatus(c ingest.Code) int {
	switch c {
	case ingest.Invalid:
		return http.StatusBadRequest
	case ingest.NoTable:
		return http.StatusNotFound
	case ingest.Denied:
		return http.StatusForbidden
	case ingest.Conflict:
		return http.StatusConflict
	case ingest.TooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusServiceUnavailable
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
