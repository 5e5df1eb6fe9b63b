package s3

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// answer is what a store has answered: its code and status.
func answer(err error) (code string, status int) {
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	return code, status
}

// kinds are the answers that mean something to callers.
var kinds = map[string]error{
	"NoSuchKey": dest.ErrNotExist,
	"NotFound":  dest.ErrNotExist,

	"NotModified": dest.ErrNotModified,

	"AccessDenied":          dest.ErrDenied,
	"InvalidAccessKeyId":    dest.ErrDenied,
	"SignatureDoesNotMatch": dest.ErrDenied,
	"ExpiredToken":          dest.ErrDenied,
	"InvalidToken":          dest.ErrDenied,

	"QuotaExceeded":                   dest.ErrFull,
	"InsufficientStorage":             dest.ErrFull,
	"XMinioStorageFull":               dest.ErrFull,
	"XMinioAdminBucketQuotaExceeded":  dest.ErrFull,
	"EntityTooLargeForBucketCapacity": dest.ErrFull,
}

// elsewhere are the answers of a store whose bucket is in another region.
var elsewhere = map[string]bool{"PermanentRedirect": true, "AuthorizationHeaderMalformed": true, "IllegalLocationConstraintException": true}

// regionOf is where a bucket is, if the answer says so.
func regionOf(err error) string {
	var resp *awshttp.ResponseError
	if !errors.As(err, &resp) || resp.Response == nil {
		return ""
	}
	return resp.Response.Header.Get("X-Amz-Bucket-Region")
}

// fail says what failed, in the terms of package dest.
func (d *Dest) fail(op, key string, err error) error {
	return &dest.Error{Op: op, Dest: d.Describe(), Key: key, Err: d.because(err)}
}

func (d *Dest) because(err error) error {
	code, status := answer(err)
	kind := kinds[code]
	switch {
	case code == "NoSuchBucket":
		return said{fmt.Sprintf("there is no bucket %s at this store, or it is in another region", d.c.Bucket), nil, err}
	case kind != nil:
	case elsewhere[code], status == http.StatusMovedPermanently:
		where := "another region"
		if r := regionOf(err); r != "" {
			where = "region " + r
		}
		return said{fmt.Sprintf("the bucket %s is in %s, and was looked for in %s: set region to where it is", d.c.Bucket, where, d.s3.Options().Region), nil, err}
	case status == http.StatusNotModified:
		kind = dest.ErrNotModified
	case status == http.StatusForbidden:
		kind = dest.ErrDenied
	case status == http.StatusInsufficientStorage:
		kind = dest.ErrFull
	}
	var api smithy.APIError
	switch {
	case errors.Is(kind, dest.ErrNotExist), errors.Is(kind, dest.ErrNotModified):
		return kind
	case errors.As(err, &api):
		text := api.ErrorCode()
		if m := api.ErrorMessage(); m != "" && m != text {
			text += ": " + m
		}
		if status != 0 {
			text = fmt.Sprintf("%s (HTTP %d)", text, status)
		}
		if kind != nil {
			text = kind.Error() + ": the store answers " + text
		} else {
			text = "the store answers " + text
		}
		return said{text, kind, err}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return said{"the connection ended in the middle of the answer", nil, err}
	}
	return err
}

// said is an error of the SDK in a sentence.
type said struct {
	text string
	kind error
	err  error
}

func (s said) Error() string { return s.text }

func (s said) Unwrap() []error {
	if s.kind == nil {
		return []error{s.err}
	}
	return []error{s.kind, s.err}
}
