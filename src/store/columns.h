/*-------------------------------------------------------------------------
 *
 * columns.h
 *	  Access to columns by number in the arrays "values" and "nulls".
 *
 * For the files that convert rows to structs and back.  They must give their
 * arrays these names.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_COLUMNS_H
#define LEASELOCK_COLUMNS_H

#include "utils/builtins.h"

#include "compat.h"

#define VALUE(column)		values[(column) - 1]
#define ISNULL(column)		nulls[(column) - 1]
#define TIME(column)		store_time_or_none(VALUE(column), ISNULL(column))

/* The value is not evaluated unless the column is set. */
#define SET_IF(condition, column, value) \
	do { \
		nulls[(column) - 1] = !(condition); \
		values[(column) - 1] = (condition) ? (value) : (Datum) 0; \
	} while (0)

/* A text with the short varlena header that it has in a stored row. */
typedef struct ShortText
{
	char		data[VARATT_SHORT_MAX];
} ShortText;

/* A text as a datum to be stored: in *room if it fits, otherwise palloc'd. */
static inline Datum
text_value(ShortText *room, const char *text)
{
	size_t		size = strlen(text) + VARHDRSZ_SHORT;

	if (size > sizeof(room->data))
		return CStringGetTextDatum(text);
	SET_VARSIZE_SHORT(room->data, size);
	memcpy(VARDATA_SHORT(room->data), text, size - VARHDRSZ_SHORT);
	return PointerGetDatum(room);
}

#define SET(column, value)	SET_IF(true, column, value)
#define SET_TIME(column, time) \
	SET_IF((time) != NO_TIME, column, TimestampTzGetDatum(time))

#endif							/* LEASELOCK_COLUMNS_H */
