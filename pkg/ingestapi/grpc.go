package ingestapi

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/ingestapi/ingestpb"
	"github.com/tributary-dev/tributary/pkg/readapi"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// service is the gRPC side of an API.
type service struct {
	ingestpb.UnimplementedIngestServer
	a *API
}

var kinds = map[ingestpb.Operation_Kind]ingest.Kind{
	ingestpb.Operation_KIND_PUT: ingest.Put, ingestpb.Operation_KIND_SET: ingest.Set, ingestpb.Operation_KIND_DELETE: ingest.Delete,
	ingestpb.Operation_KIND_ADD: ingest.Add, ingestpb.Operation_KIND_TRUNCATE: ingest.Truncate,
}

// Write commits a batch.
func (s service) Write(ctx context.Context, req *ingestpb.WriteRequest) (*ingestpb.WriteResponse, error) {
	identity := ""
	if s.a.g != nil {
		var err error
		if identity, err = s.a.g.Peer(ctx); err != nil {
			s.a.w.Refused(ingest.Denied)
			return nil, err
		}
	}
	b := &ingest.Batch{Key: req.IdempotencyKey}
	for i, o := range req.Operations {
		op := ingest.Op{Kind: kinds[o.GetKind()]}
		var err error
		if op.Kind == "" {
			err = fmt.Errorf("its kind, %s, is none that is known here", o.GetKind())
		} else {
			op.Table, err = readapi.ParseTable(o.Table)
		}
		if err != nil {
			s.a.w.Refused(ingest.Invalid)
			return nil, fault(&ingest.Error{Code: ingest.Invalid, Op: i, Err: err})
		}
		for _, f := range o.Row {
			op.Row = append(op.Row, ingest.Field{Column: f.GetColumn(), Value: f.Text})
		}
		b.Ops = append(b.Ops, op)
	}
	if err := s.a.permit(identity, b); err != nil {
		return nil, fault(err)
	}
	res, err := s.a.write(ctx, b)
	if err != nil {
		return nil, fault(err)
	}
	return &ingestpb.WriteResponse{
		Origin: res.Log.Origin, Epoch: uint64(res.Log.Epoch), Position: string(res.Position), Time: uint64(res.Time), Rows: uint64(res.Rows), Repeated: res.Repeated,
	}, nil
}

// fault is an error as a gRPC status.
func fault(e *ingest.Error) error {
	code := codes.Unavailable
	switch e.Code {
	case ingest.Invalid:
		code = codes.InvalidArgument
	case ingest.NoTable:
		code = codes.NotFound
	case ingest.Denied:
		code = codes.PermissionDenied
	case ingest.Conflict:
		code = codes.FailedPrecondition
	case ingest.TooLarge:
		code = codes.ResourceExhausted
	}
	st := status.New(code, e.Error())
	if with, err := st.WithDetails(&ingestpb.WriteFault{Code: string(e.Code), Operation: int32(e.Op)}); err == nil {
		st = with
	}
	return st.Err()
}
